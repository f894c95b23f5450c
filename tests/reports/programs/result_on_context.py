"""Fits a texture to a picture with an operation that has its own derivative."""

import torch

HEIGHT, WIDTH, STEPS = 1024, 2048, 60


class Shade(torch.autograd.Function):
    """Maps a texture to pixel values between 0 and 1."""

    @staticmethod
    def forward(ctx, texture, exposure):
        image = torch.sigmoid(texture * exposure)
        ctx.exposure = exposure
        ctx.image = image
        return image

    @staticmethod
    def backward(ctx, gradient):
        image = ctx.image
        return gradient * image * (1 - image) * ctx.exposure, None


def render(texture):
    return Shade.apply(texture, 2.0)


def update(texture, optimizer, picture):
    image = render(texture)
    loss = (image - picture).square().mean()
    loss.backward()
    optimizer.step()
    optimizer.zero_grad()
    return loss.item()


def main():
    picture = torch.rand(HEIGHT, WIDTH, device="cuda")
    texture = torch.zeros(HEIGHT, WIDTH, device="cuda", requires_grad=True)
    optimizer = torch.optim.SGD([texture], lr=1000.0)
    for step in range(STEPS):
        with torch.profiler.record_function(f"step {step}"):
            loss = update(texture, optimizer, picture)
        if step % 10 == 0:
            print(f"step {step}: loss {loss:.5f}, allocated {torch.cuda.memory_allocated() >> 20} MiB")


main()
