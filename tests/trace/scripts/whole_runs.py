"""Loops whose steps differ, by name: `python whole_runs.py NAME`."""

import os
import random
import sys

import torch
import torch.distributed.fsdp
from torch import nn
from torch.nn.functional import cross_entropy, scaled_dot_product_attention

VOCABULARY = 500


class Block(nn.Module):
    def __init__(self, width, written_out):
        super().__init__()
        self.norm, self.qkv, self.out = nn.LayerNorm(width), nn.Linear(width, 3 * width), nn.Linear(width, width)
        self.mlp = nn.Sequential(
            nn.LayerNorm(width), nn.Linear(width, 4 * width), nn.GELU(), nn.Linear(4 * width, width)
        )
        self.written_out = written_out

    def forward(self, x):
        q, k, v = (each.unflatten(-1, (2, -1)).transpose(1, 2) for each in self.qkv(self.norm(x)).chunk(3, -1))
        if self.written_out:
            mixed = (q @ k.transpose(-1, -2)).softmax(-1) @ v
        else:
            mixed = scaled_dot_product_attention(q, k, v, is_causal=True)
        x = x + self.out(mixed.transpose(1, 2).flatten(2))
        return x + self.mlp(x)


class Model(nn.Module):
    def __init__(self, width=64, written_out=False):
        super().__init__()
        self.embed, self.head = nn.Embedding(VOCABULARY, width), nn.Linear(width, VOCABULARY)
        self.blocks = nn.Sequential(Block(width, written_out), Block(width, written_out))

    def forward(self, ids, labels=None):
        logits = self.head(self.blocks(self.embed(ids)))
        return logits if labels is None else cross_entropy(logits.float().flatten(0, 1), labels.flatten())


def batch(rows, length):
    return torch.randint(0, VOCABULARY, (rows, length)).cuda()


def late_long():
    """The longest batch comes when all others were seen."""
    model = Model().cuda()
    optimizer = torch.optim.AdamW(model.parameters())
    for length in [128] * 8 + [2048] + [128] * 3:
        ids = batch(4, length)
        model(ids, ids).backward()
        optimizer.step()
        optimizer.zero_grad()


class Selective(Model):
    def forward(self, ids, labels):
        """Also which places have a label to come: the head sees these alone."""
        wanted = labels[:, 1:] != -100
        logits = self.head(self.blocks(self.embed(ids))[:, :-1][wanted])
        return cross_entropy(logits.float(), labels[:, 1:][wanted]), wanted


def labels_left_out():
    model = Selective().cuda()
    optimizer = torch.optim.AdamW(model.parameters())
    draw = random.Random(0)
    for _ in range(24):
        ids = torch.randint(0, VOCABULARY, (4, draw.randrange(40, 400)))
        labels = ids.clone()
        labels[:, : draw.randrange(2, 30)] = -100
        loss, wanted = model(ids.cuda(), labels.cuda())
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        if wanted.sum() > 0:
            print(wanted.float().mean(-1, keepdim=True).shape)


def late_evaluation():
    """Before training and after each epoch; all its outputs are held."""
    model = Model().cuda()
    optimizer = torch.optim.AdamW(model.parameters())
    with torch.no_grad():
        model(batch(64, 256))
    for _ in range(2):
        for _ in range(8):
            ids = batch(2, 128)
            model(ids, ids).backward()
            optimizer.step()
            optimizer.zero_grad()
        with torch.no_grad():
            held = [model(batch(8, 128)) for _ in range(12)]
        del held


def square():
    """Scores that grow with the square of the length; a length longer than all before."""
    model = Model(written_out=True).cuda()
    optimizer = torch.optim.AdamW(model.parameters())
    for length in [100, 37, 250, 64, 91, 180, 222, 133, 75, 60, 111, 199, 240, 88, 600, 77]:
        ids = batch(4, length)
        model(ids, ids).backward()
        optimizer.step()
        optimizer.zero_grad()


def loss_outside():
    """Logits are held until the next step; now and then a large batch without gradients."""
    random.seed(2)
    model = Model().cuda()
    optimizer = torch.optim.SGD(model.parameters(), momentum=0.9)
    for step in range(20):
        ids = batch(4, random.choice((64, 96, 128, 200, 256)))
        logits = model(ids)
        loss = cross_entropy(logits.float().flatten(0, 1), ids.flatten())
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        if step % 10 == 9:
            with torch.no_grad():
                model(batch(32, 256)).softmax(-1)


def scaler():
    """Mixed precision, clipping, and fewer rows at the end of an epoch."""
    random.seed(1)
    model = Model().cuda()
    optimizer, scale = torch.optim.AdamW(model.parameters()), torch.amp.GradScaler("cuda")
    for _ in range(2):
        for rows in [8] * 9 + [3]:
            ids = batch(rows, 8 * random.choice((4, 9, 16, 25, 31)))
            with torch.autocast("cuda", torch.float16):
                loss = model(ids, ids)
            optimizer.zero_grad()
            scale.scale(loss).backward()
            scale.unscale_(optimizer)
            nn.utils.clip_grad_norm_(model.parameters(), 1.0)
            scale.step(optimizer)
            scale.update()


def accumulation():
    """Two batches a step, of a few lengths."""
    random.seed(4)
    model = Model().cuda()
    optimizer = torch.optim.AdamW(model.parameters())
    for _ in range(12):
        for _ in range(2):
            ids = batch(4, random.choice((64, 128)))
            (model(ids, ids) / 2).backward()
        nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        optimizer.zero_grad()


def loss_module():
    """The loss is a module of its own; casts of biases live until autocast ends, after both. The last batch of an
    epoch, second of its step, is short, and a validation follows."""
    model = nn.Sequential(nn.Linear(64, 256), nn.ReLU(), nn.Linear(256, 256), nn.ReLU(), nn.Linear(256, 10)).cuda()
    optimizer, criterion = torch.optim.AdamW(model.parameters()), nn.CrossEntropyLoss()
    for _ in range(2):
        for at, rows in enumerate([32] * 11 + [20]):
            x, y = torch.randn(rows, 64, device="cuda"), torch.randint(0, 10, (rows,), device="cuda")
            with torch.autocast("cuda", torch.bfloat16):
                loss = criterion(model(x), y)
            loss.backward()
            if at % 2:
                optimizer.step()
                optimizer.zero_grad()
        with torch.no_grad():
            for _ in range(2):
                criterion(model(torch.randn(64, 64, device="cuda")), torch.zeros(64, dtype=torch.long, device="cuda"))


def unfreezing():
    """The first block trains from the ninth step on."""
    model = Model().cuda()
    model.blocks[0].requires_grad_(False)
    optimizer = torch.optim.AdamW(model.parameters())
    for step in range(14):
        if step == 8:
            model.blocks[0].requires_grad_(True)
        ids = batch(4, 128)
        model(ids, ids).backward()
        optimizer.step()
        optimizer.zero_grad()


def zeros():
    """Gradients stay where they are."""
    model = Model().cuda()
    optimizer = torch.optim.AdamW(model.parameters())
    for _ in range(10):
        ids = batch(4, 128)
        optimizer.zero_grad(set_to_none=False)
        model(ids, ids).backward()
        optimizer.step()


def without_zero_grad():
    """Gradients go by the script's own hand."""
    model = Model().cuda()
    optimizer = torch.optim.AdamW(model.parameters())
    for _ in range(10):
        ids = batch(4, 128)
        model(ids, ids).backward()
        optimizer.step()
        for parameter in model.parameters():
            parameter.grad = None


def asks():
    """How full the card is after every step; two batches are longer, and peaks are reset once both are over."""
    model = Model().cuda()
    optimizer = torch.optim.AdamW(model.parameters())
    for step in range(14):
        ids = batch(4, 128 if step % 7 else 500)
        model(ids, ids).backward()
        optimizer.step()
        optimizer.zero_grad()
        allocated, reserved = torch.cuda.memory_allocated(), torch.cuda.memory_reserved()
        peaks = torch.cuda.max_memory_allocated(), torch.cuda.max_memory_reserved()
        stats, (free, total) = torch.cuda.memory_stats(), torch.cuda.mem_get_info()
        assert (allocated, peaks[1]) == (stats["allocated_bytes.all.current"], stats["reserved_bytes.all.peak"])
        print("asked", step, allocated, reserved, *peaks, total - free - reserved)
        if step == 9:
            torch.cuda.reset_peak_memory_stats()


def train_over_lengths(model):
    random.seed(5)
    optimizer = torch.optim.AdamW(model.parameters())
    for _ in range(24):
        ids = batch(4, random.choice((64, 96, 128, 200, 256)))
        model(ids, ids).backward()
        optimizer.step()
        optimizer.zero_grad()


def join_others():
    torch.cuda.set_device(int(os.environ["LOCAL_RANK"]))
    torch.distributed.init_process_group("nccl")


def ddp():
    """One of several processes, each with a copy of the model."""
    join_others()
    train_over_lengths(nn.parallel.DistributedDataParallel(Model().cuda()))


def fsdp():
    """One of several processes, each with a part of the model."""
    join_others()
    model = Model().cuda()
    for block in model.blocks:
        torch.distributed.fsdp.fully_shard(block)
    torch.distributed.fsdp.fully_shard(model)
    train_over_lengths(model)


def no_end():
    model = Model().cuda()
    optimizer = torch.optim.SGD(model.parameters())
    while True:
        ids = batch(2, 16)
        model(ids, ids).backward()
        optimizer.step()
        optimizer.zero_grad()


def reads_stub():
    """Fails where a call of the model was skipped: what it looks for is not in the graph then."""
    model = Model().cuda()
    optimizer = torch.optim.SGD(model.parameters())
    for _ in range(6):
        ids = batch(2, 16)
        model(ids, ids).backward()
        assert model.head.weight.grad is not None
        optimizer.step()
        optimizer.zero_grad()


globals()[sys.argv[1]]()
