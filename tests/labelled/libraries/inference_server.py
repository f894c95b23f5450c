"""Answers requests from a queue with a Swin transformer of torchvision; results go to the host."""

import queue
import threading

import torch
import torchvision
from progress import report

DEVICE = "cuda" if torch.cuda.is_available() else "cpu"
REQUESTS = 16


def send_requests(requests):
    for number in range(REQUESTS):
        requests.put((number, torch.rand(16, 3, 224, 224)))


@torch.inference_mode()
def answer(model, images):
    chances = model(images.to(DEVICE)).softmax(dim=-1)
    best = chances.topk(5, dim=-1)
    return best.indices.cpu(), best.values.cpu()


def main():
    torch.manual_seed(25)
    model = torchvision.models.swin_t(weights=None).to(DEVICE).eval()
    requests = queue.Queue(maxsize=4)
    client = threading.Thread(target=send_requests, args=(requests,))
    client.start()
    results = {}
    for step in range(REQUESTS):
        number, images = requests.get()
        results[number] = answer(model, images)
        report(step)
    client.join()
    print(len(results))


if __name__ == "__main__":
    main()
