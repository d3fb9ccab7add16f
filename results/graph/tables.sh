#!/bin/sh
# All tables of this folder from runs.csv. Run it from the project's root: sh results/graph/tables.sh
set -eu
task=graph
. results/show.sh
most=MUTAG,IMDB-BINARY,PROTEINS
published=uotp-sinkhorn-paper,uotp-badmm-e-paper,uotp-badmm-q-paper

show paper --protocol paper --dataset $most
show large --protocol paper --set epochs=5
show fair_transductive --set transductive=true
show fair_inductive --dataset MUTAG
show optimism --kind optimism --set transductive=true
for pooling in uotp-sinkhorn uotp-badmm-e uotp-badmm-q; do
    show against_$pooling --kind comparison --protocol paper --pooling $pooling --dataset $most
    show against_${pooling}_fair --kind comparison --pooling $pooling --set transductive=true
done
show readout --kind settings --protocol paper --pooling add,mean,$published --vary pool.readout --dataset $most
show modules --kind settings --protocol paper --pooling uotp --vary pool.K --dataset MUTAG
show priors --kind settings --protocol paper --pooling uotp --vary pool.p0,pool.q0 --dataset MUTAG
show cost --kind cost --protocol paper --dataset $most
