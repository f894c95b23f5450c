#!/usr/bin/env python3
"""Records programs of real libraries that have no memory problem.

    record.py OUT [--only NAME] [--jobs N] [--device cpu]

Writes OUT/NAME.pickle.gz and OUT/NAME.json for each program of PROGRAMS, each run in a process of
its own by recorder.py, and prints one line of JSON for each. A program that fails does not stop the
others; the exit status is then 1. All models are built from a configuration with random weights.
"""

import argparse
import concurrent.futures
import json
import os
import sys
from pathlib import Path

FOLDER = Path(__file__).resolve().parent
sys.path.insert(0, str(FOLDER.parent))

import generate  # noqa: E402
from programs.compose import Program  # noqa: E402

# The library and what the program does, by file name.
PROGRAMS = {
    "gpt2_training": ("transformers", "GPT-2 training"),
    "bert_classification": ("transformers", "BERT classification with evaluation"),
    "t5_training": ("transformers", "T5 training, then generation"),
    "vit_training": ("transformers", "ViT training in bfloat16"),
    "llama_generation": ("transformers", "generation with a cache of keys and values"),
    "trainer": ("transformers", "Trainer"),
    "lora": ("peft", "LoRA training"),
    "timm_training": ("timm", "training and evaluation"),
    "resnet_training": ("torchvision", "ResNet training"),
    "detection": ("torchvision", "Faster R-CNN training"),
    "segmentation": ("torchvision", "segmentation training"),
    "lightning_module": ("lightning", "training and validation of an own module"),
    "gcn": ("torch_geometric", "GCN training on a whole graph"),
    "graph_sage": ("torch_geometric", "GraphSAGE training on sampled batches"),
    "message_passing": ("torch_geometric", "training of an own message-passing layer"),
    "sentence_embeddings": ("sentence-transformers", "training and encoding"),
    "accelerate_training": ("accelerate", "training with gradient accumulation"),
    "mixed_precision": ("torchvision", "float16 training with a GradScaler"),
    "gradient_accumulation": ("torch", "gradient accumulation"),
    "gan": ("torch", "GAN training"),
    "dqn": ("torch", "Q learning with a replay buffer in host memory"),
    "ppo": ("torch", "PPO with rollouts"),
    "lstm_language_model": ("torch", "LSTM language model"),
    "diffusion_unet": ("torch", "U-Net training with averaged weights"),
    "inference_server": ("torchvision", "inference server"),
    "evaluation_after_training": ("torch", "evaluation after training"),
}


def record(name, out, device):
    """Runs one program, and returns its line of results."""
    library, what = PROGRAMS[name]
    source = (FOLDER / f"{name}.py").read_text()
    program = Program(f"none ({library}: {what})", "none", {"train.py": source}, family=library)
    try:
        return generate.run(name, program, device, out)
    except Exception as error:
        return {"name": name, "failed": repr(error)}


def main():
    parser = argparse.ArgumentParser(description=__doc__.partition("\n\n")[0])
    parser.add_argument("out", type=Path, metavar="OUT", help="Folder for the recordings")
    parser.add_argument(
        "--only", metavar="NAME", action="append", choices=list(PROGRAMS), help="Record only this program; repeatable"
    )
    parser.add_argument("--jobs", type=int, default=6, help="Programs at a time [default: %(default)s]")
    parser.add_argument("--device", choices=["cuda", "cpu"], default="cuda")
    options = parser.parse_args()
    options.out.mkdir(parents=True, exist_ok=True)
    # No library may ask a server.
    os.environ |= {"HF_HUB_OFFLINE": "1", "TRANSFORMERS_OFFLINE": "1", "TOKENIZERS_PARALLELISM": "false"}
    if options.device == "cpu":
        os.environ["CUDA_VISIBLE_DEVICES"] = ""
    is_good = True
    with concurrent.futures.ThreadPoolExecutor(options.jobs) as executor:
        results = [
            executor.submit(record, name, options.out, options.device) for name in options.only or PROGRAMS
        ]
        for result in concurrent.futures.as_completed(results):
            line = result.result()
            is_good = is_good and "failed" not in line
            print(json.dumps(line), flush=True)
    return 0 if is_good else 1


if __name__ == "__main__":
    sys.exit(main())
