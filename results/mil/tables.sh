#!/bin/sh
# All tables of this folder from runs.csv. Run it from the project's root: sh results/mil/tables.sh
set -eu
task=mil
. results/show.sh
classics=musk1,musk2,fox,tiger,elephant
genes="--dataset component,function --set lr=5e-4 --set weight_decay=5e-3"

show fair --dataset $classics --seeds 5
show fair_balanced --dataset $classics --seeds 5 --metric balanced_accuracy
show fair_auc --dataset $classics --seeds 5 --metric auc
show paper --protocol paper --seeds 5
show optimism --kind optimism --dataset $classics --seeds 5
for pooling in uotp-sinkhorn uotp-badmm-e uotp-badmm-q; do
    show against_$pooling --kind comparison --pooling $pooling --dataset $classics --seeds 5
done
show genes_fair $genes
show genes_optimism $genes --kind optimism
show component_tuned --dataset component
show genes_fair_balanced $genes --metric balanced_accuracy
show genes_fair_auc $genes --metric auc
show modules --kind settings --pooling uotp --vary pool.K --dataset musk2 --seeds 5
show priors --kind settings --pooling uotp --vary pool.p0,pool.q0 --dataset musk2 --seeds 5
transport="--kind settings --pooling uotp,mean --seeds 5, --vary alpha0_of_spread,pool_lr,pool_decay,pool.alpha0,pool.alpha1,pool.alpha2"
show transport_loss $transport --metric validation_loss
show transport_accuracy $transport
show transport_divergence $transport --metric divergence
