#!/bin/sh
# All tables of this folder from runs.csv. Run it from the project's root: sh results/image/tables.sh
set -eu
task=image
. results/show.sh
two="--set recipe=two-stage --set epochs=10 --set pool_epochs=10"
pretrained="--set recipe=two-stage --set arch=efficientnet-lite0 --set lr=0.01 --set epochs=20 --set pool_epochs=10"
adam="--set optimizer2=adam --set lr2=0.01"

show fashion_two_stage --kind swap --dataset fashion-mnist $two --set train_size=10000
show fashion_two_stage_adam --kind swap --dataset fashion-mnist $two $adam --set train_size=10000
show pretrained --kind swap --dataset cifar10-subset $pretrained
show fashion_scratch --dataset fashion-mnist --set epochs=6 --set train_size=10000
show local --kind settings --set arch=cnn --set train_size=10000 --set epochs=6 --set augment=false --vary local
