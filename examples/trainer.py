"""Hugging Face Trainer: one callback compresses the gradients and logs the bytes.

torchrun --nproc-per-node 2 examples/trainer.py [--codec int4+ef] [--steps 20]
Needs: pip install transformers accelerate
"""

import argparse
import tempfile

import torch
from torch import Tensor, nn
from transformers import Trainer, TrainingArguments

from tersor.integrations.transformers import TersorCallback

parser = argparse.ArgumentParser()
parser.add_argument("--codec", default="int4+ef")
parser.add_argument("--steps", type=int, default=20)
options = parser.parse_args()


class Classifier(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.Sequential(nn.Linear(64, 256), nn.ReLU(), nn.Linear(256, 10))

    def forward(self, inputs: Tensor, labels: Tensor) -> dict[str, Tensor]:
        return {"loss": nn.functional.cross_entropy(self.layers(inputs), labels)}


torch.set_num_threads(1)
torch.manual_seed(0)
inputs = torch.randn(1024, 64)
dataset = [{"inputs": one, "labels": one[:10].argmax()} for one in inputs]
with tempfile.TemporaryDirectory() as folder:  # of checkpoints, with Tersor's residuals
    arguments = TrainingArguments(
        folder,
        max_steps=options.steps,
        logging_steps=options.steps,
        save_steps=options.steps,
        learning_rate=1e-2,
        per_device_train_batch_size=32,
        report_to="none",
        disable_tqdm=True,
        use_cpu=True,
    )
    callback = TersorCallback(codec=options.codec)
    trainer = Trainer(Classifier(), arguments, train_dataset=dataset, callbacks=[callback])
    trainer.train()  # or resume_from_checkpoint=True

totals = callback.handle.totals()
if trainer.is_world_process_zero():
    sent, instead = totals.sent_bytes, totals.uncompressed_bytes
    print(f"sent {sent / 1024:.0f} KiB instead of {instead / 1024:.0f} KiB")
