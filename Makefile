# Every command a person types; `make help` lists them. VARIABLE=value is the option --variable of the gdt command that
# a target stands for, and ARGS="--option value" gives it others: `gdt pretrain --help` and the like list them.

SHELL := /bin/bash
.DEFAULT_GOAL := help

# An active conda environment is used as it is; otherwise everything goes into .venv.
ifdef CONDA_PREFIX
PYTHON := $(CONDA_PREFIX)/bin/python
STAMP := $(CONDA_PREFIX)/.gdt-setup
else
PYTHON := .venv/bin/python
STAMP := .venv/.stamp
endif

# Typed variables, but for those of make, Python and the libraries; common/variables.py makes options of them. $(1) are
# those that a recipe uses itself.
libraries := PYTHON% STAMP CONDA_PREFIX VIRTUAL_ENV SHELL MAKE% PATH HOME TMPDIR LD_% PIP_% OMP_% CUDA_% NVIDIA_% \
  NCCL_% TORCH_% PYTORCH_% MKL_% DASK_% GDT_% %_proxy %_PROXY
typed := $(filter-out $(libraries),$(foreach name,$(.VARIABLES),$(if $(filter command,$(firstword $(origin $(name)))),$(name))))
# and those of these that are set in the environment
set := $(foreach name,DATASET PRESET GPUS SIZE SEEDS ROWS ARGS,$(if $(filter environment,$(origin $(name))),$(name)))
gdt = @GDT_GOALS="$(goals)" GDT_TYPED="$(filter-out $(1),$(typed))" GDT_SET="$(filter-out $(1),$(set))" $(PYTHON) -m gdt
only = $(if $(filter-out $(1),$(typed)),$(error '$@' takes $(or $(1),no variables), and $(typed) was typed))
goals := $(or $(MAKECMDGOALS),help)
ifeq ($(filter-out help setup demo test lint clean,$(goals)),)
$(if $(typed),$(error '$(goals)' takes no variables, and $(typed) was typed))
endif
# the checkpoint of `make pretrain` with the same DATASET, PRESET, FACTORS and SEED; gdt/command.py finds its path
checkpoint = make:$(or $(1),$(DATASET),synthetic)
official = $(call gdt,PRESET FACTORS) eval downstream --ckpt $(call checkpoint,kinetics) --protocols finetune retrieval few-shot linear

.PHONY: help setup demo test lint preprocess verify pretrain ablation search eval eval-ucf eval-hmdb eval-factors embed report show-batch show-tree theorem figures bench bench-gpu clean
.SUFFIXES:

help: ## this list
	@echo "make <target> [VARIABLE=value ...]"; echo
	@awk -F ':.*## ' '/^[a-z-]+:.*## / {printf "  make %-12s %s\n", $$1, $$2}' Makefile
	@echo; echo "gdt <command> --help (.venv/bin/gdt) shows every option; each is a variable, in capitals, too."

setup: $(STAMP) ## install everything into .venv (or the active conda environment)

$(STAMP): pyproject.toml constraints.txt setup.sh
	@bash setup.sh "$(PYTHON)" "$@"

demo: $(STAMP) ## the whole way on a generated data set, without a GPU, in five minutes
	@$(PYTHON) -m gdt generate synthetic --destination data/videos/demo --train 40 --val 1 --test 20
	@$(PYTHON) -m gdt preprocess --dataset synthetic --source data/videos/demo --destination data/shards/demo
	@CUDA_VISIBLE_DEVICES= $(PYTHON) -m gdt eval ablation --dataset demo --clips-per-step 32 --steps 340 --clips 3 \
	  --jobs 3 --factors no --out runs/demo
	@$(PYTHON) -m gdt eval report --runs runs/demo --out runs/demo/report.html

preprocess: $(STAMP) ## videos to shards: DATASET= SOURCE= [DRY_RUN=1] [WORKERS=] [SCHEDULER=] [WORD2VEC=]; again: resumes
	$(gdt) preprocess --dataset synthetic

verify: $(STAMP) ## checks every shard and says what is damaged: DATASET= [FULL=1: decodes every frame]
	$(gdt) verify --dataset synthetic

pretrain: $(STAMP) ## shards to a checkpoint: [DATASET=] [PRESET=l|help | FACTORS="..."] [WORD2VEC=] [INIT=] [SIZE=paper|tiny] [GPUS=1] [NODES=4 SCHEDULER=slurm [SBATCH="--partition=gpu ..."]]; again: resumes
	$(gdt) pretrain --dataset synthetic

eval: $(STAMP) ## any data set by the paper's protocols: [CKPT=...] [DATASET=] [PROTOCOLS="retrieval few-shot linear finetune cross-modal"]
	$(call gdt,PRESET FACTORS) eval downstream --ckpt $(checkpoint)

eval-ucf: $(STAMP) ## UCF-101, all folds: finetune, retrieval, few-shot, linear: [CKPT=] [FOLDS="1 2 3"] [RECIPE=paper|published] [PROTOCOLS=] [GPUS=]
	$(official) --dataset ucf101

eval-hmdb: $(STAMP) ## the same for HMDB-51
	$(official) --dataset hmdb51

eval-factors: $(STAMP) ## what features know of each factor, beside what the composition promises: [CKPT="a.pt ..."] [DATASET=]
	$(call gdt,PRESET FACTORS) eval factors --ckpt $(checkpoint)

embed: $(STAMP) ## features of your videos in a file: CKPT= SOURCE=/my/videos | DATASET= [OUT=features.h5]
	$(call gdt,PRESET FACTORS SEED) eval embed --ckpt $(checkpoint)

report: $(STAMP) ## one HTML page of all runs below a folder: [RUNS=runs] [OUT=page.html] [FIGURES_OF=NAME]
	$(gdt) eval report

ablation: $(STAMP) ## rows of table 1 compared, several seeds, on every label, and by factors: [DATASET=] [ROWS="a e l"] [SEEDS="0 1 2"]
	$(gdt) eval ablation --dataset synthetic --seeds 0 1 2

search: $(STAMP) ## compositions of given factors ranked: [DATASET=] [FACTORS="time_shift:2,4 modality"] [TRIALS=30]
	$(gdt) eval search

show-batch: $(STAMP) ## a picture of every leaf of one video: [DATASET=] [PRESET=l | FACTORS="..."] [WORD2VEC=]
	$(gdt) eval show-batch

show-tree: $(STAMP) ## the sampling tree, and what each leaf attracts and repels: [PRESET=l | FACTORS="..."]
	$(gdt) eval show-tree

theorem: $(STAMP) ## the paper's theorem, simulated and compared with its formulas
	$(gdt) study theorem

figures: $(STAMP) ## the paper's pictures of features: CKPT="a.pt ..." [DATASET=]
	$(call gdt,PRESET FACTORS) study figures --ckpt $(checkpoint)

bench: $(STAMP) ## the speed figures of the README: [SOURCE=/videos]
	$(call only,SOURCE)@$(PYTHON) -m benchmarks.preprocess $(if $(SOURCE),--source "$(SOURCE)")
	@$(PYTHON) -m benchmarks.loader $(if $(SOURCE),--source "$(SOURCE)")
	@$(PYTHON) -m benchmarks.memory
	@$(PYTHON) -m benchmarks.planning
	@$(PYTHON) -m benchmarks.relabel
	@$(PYTHON) -m benchmarks.features
	@$(PYTHON) -m benchmarks.size

bench-gpu: $(STAMP) ## what a GPU does, beside predictions and the plain way, on shards that it draws: [ARGS="--minutes 40"]
	$(call only,ARGS)@$(PYTHON) -m benchmarks.gpu $(ARGS)

lint: $(STAMP) ## style and types
	@$(PYTHON) -m ruff check . && $(PYTHON) -m ruff format --check . && $(PYTHON) -m mypy

test: $(STAMP) lint ## set up, then style, types and the whole test suite
	@$(PYTHON) -m pytest -n 2 --dist worksteal

clean: ## remove the virtual environment; data and runs stay
	rm -rf .venv
