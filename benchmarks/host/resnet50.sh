#!/bin/sh
# Steps of an ImageNet recipe on synthetic or real images; "dkfac bench --help" lists the options.
# Usage: benchmarks/host/resnet50.sh [RECIPE.toml] [options]      Environment: DKFAC (the program)
#   e.g. benchmarks/host/resnet50.sh --device cuda --global-batch 256 --steps 50 --out step.json
exec "${DKFAC:-build/release/src/app/dkfac}" bench resnet50 "$@"
