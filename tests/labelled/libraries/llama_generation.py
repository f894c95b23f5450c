"""Generates text with a small Llama of transformers and its cache of keys and values."""

import torch
from progress import report
from transformers import LlamaConfig, LlamaForCausalLM

DEVICE = "cuda" if torch.cuda.is_available() else "cpu"


@torch.inference_mode()
def answer(model, prompt):
    mask = torch.ones_like(prompt)
    tokens = model.generate(prompt, attention_mask=mask, max_new_tokens=8, do_sample=False, pad_token_id=0)
    return tokens[:, prompt.shape[1] :].tolist()


def main():
    torch.manual_seed(5)
    config = LlamaConfig(
        vocab_size=4000, hidden_size=512, intermediate_size=1408, num_hidden_layers=4, num_attention_heads=8,
        num_key_value_heads=4, max_position_embeddings=512, bos_token_id=1, eos_token_id=None,
    )  # fmt: skip
    model = LlamaForCausalLM(config).to(DEVICE, torch.bfloat16).eval()
    for step in range(10):
        prompt = torch.randint(2, 4000, (16, 384), device=DEVICE)
        print(step, answer(model, prompt)[0])
        report(step)


if __name__ == "__main__":
    main()
