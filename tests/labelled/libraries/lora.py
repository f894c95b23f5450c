"""Trains LoRA adapters of peft on a small GPT-2, whose own weights are frozen."""

import torch
from peft import LoraConfig, get_peft_model
from progress import report
from transformers import GPT2Config, GPT2LMHeadModel

DEVICE = "cuda" if torch.cuda.is_available() else "cpu"


def main():
    torch.manual_seed(7)
    base = GPT2LMHeadModel(GPT2Config(vocab_size=4000, n_positions=256, n_embd=512, n_layer=5, n_head=8))
    adapters = LoraConfig(r=8, lora_alpha=16, target_modules=["c_attn", "c_proj"], task_type="CAUSAL_LM")
    model = get_peft_model(base, adapters).to(DEVICE)
    model.print_trainable_parameters()
    trained = [it for it in model.parameters() if it.requires_grad]
    optimizer = torch.optim.AdamW(trained, lr=2e-4)
    model.train()
    for step in range(12):
        tokens = torch.randint(4000, (6, 192), device=DEVICE)
        loss = model(input_ids=tokens, labels=tokens).loss
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        print(f"{step}: {loss.item():.3f}")
        report(step)


if __name__ == "__main__":
    main()
