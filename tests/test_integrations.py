"""gradwire under Accelerate, the Hugging Face Trainer and Lightning: the real ones, over gloo."""

from pathlib import Path

import lightning
import pytest
import torch
import torch.distributed as dist
from accelerate import Accelerator, FullyShardedDataParallelPlugin
from accelerate.state import AcceleratorState, PartialState
from accelerate.utils import DistributedType
from lightning.pytorch.callbacks import ModelCheckpoint
from lightning.pytorch.plugins.environments import TorchElasticEnvironment
from lightning.pytorch.strategies import DDPStrategy, ModelParallelStrategy
from torch import nn
from torch.distributed.fsdp import FSDPModule, fully_shard
from torch.distributed.tensor import DTensor
from torch.utils.data import DataLoader, TensorDataset
from transformers import TrainingArguments

import gradwire as gw
from gradwire.integrations.accelerate import attach
from gradwire.integrations.lightning import Compress
from gradwire.integrations.transformers import CompressedTrainer
from gradwire.integrations.workers import load_from, save_to
from gradwire.transport.link import ring_nbytes
from world import data, only_first_warns

WIDTH, STEPS = 128, 6
CODEC = gw.QSGD(bits=2)
FEEDBACK = {"error_feedback": True}


class Net(nn.Module):
    """Three layers that are encoded; `forward` returns what the Trainer wants, a loss."""

    def __init__(self):
        super().__init__()
        torch.manual_seed(0)
        layers = [m for _ in range(3) for m in (nn.Linear(WIDTH, WIDTH), nn.Tanh())]
        self.net = nn.Sequential(*layers)

    def forward(self, x):
        return {"loss": self.net(x).square().mean()}


@pytest.fixture
def folder(tmp_path):
    return str(tmp_path)


def as_under_torchrun(patch, rank):
    """Tell the frameworks of the process group that is there already."""
    size = dist.get_world_size()
    names = {"RANK": rank, "LOCAL_RANK": rank, "WORLD_SIZE": size, "LOCAL_WORLD_SIZE": size}
    for name, value in {**names, "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": 29555}.items():
        patch.setenv(name, str(value))


def weights(model):
    """All of them, of FSDP too."""
    tensors = [p.detach() for p in model.parameters()]
    whole = [x.full_tensor() if isinstance(x, DTensor) else x for x in tensors]
    return nn.utils.parameters_to_vector(whole).clone()


def float32_bytes(steps, sharded=False):
    """What plain DDP sends, or what plain FSDP sends of gradients, which is half as much."""
    numel = sum(p.numel() for p in Net().parameters())
    return steps * ring_nbytes(4 * numel, dist.get_world_size()) // (2 if sharded else 1)


def check_runs(answers):
    """Ranks agree to the bit, what was resumed is what was never interrupted, and it was small."""
    for whole, resumed, ratio in answers:
        assert torch.equal(whole, answers[0][0])
        assert torch.equal(whole, resumed)
        assert ratio < 0.1


# Accelerate


def accelerated():
    accelerator = Accelerator(cpu=True)
    model = Net()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
    model, optimizer = accelerator.prepare(model, optimizer)
    return accelerator, model, optimizer, attach(accelerator, model, CODEC, **FEEDBACK)


def accelerated_steps(run, rank, steps):
    accelerator, model, optimizer, _ = run
    for step in steps:
        optimizer.zero_grad()
        accelerator.backward(model(data(rank, 16 * WIDTH, seed=step).view(16, WIDTH))["loss"])
        optimizer.step()
    return weights(model)


def accelerate_resume(rank, folder):
    with pytest.MonkeyPatch.context() as patch:
        as_under_torchrun(patch, rank)
        run = accelerated()
        accelerated_steps(run, rank, range(3))
        run[0].save_state(folder)
        whole = accelerated_steps(run, rank, range(3, STEPS))
        again = accelerated()
        fresh = again[-1].state_dict()
        again[0].load_state(folder)
        resumed = accelerated_steps(again, rank, range(3, STEPS))
        again[0].load_state(folder)
        again[-1].load_state_dict(fresh)
        assert not torch.equal(accelerated_steps(again, rank, range(3, STEPS)), whole)
        for each in (run, again):
            each[-1].close()
        AcceleratorState._reset_state(reset_partial_state=True)
    return whole, resumed, run[-1].stats().bytes_sent / float32_bytes(STEPS)


def test_accelerate_resumes_bit_for_bit(worlds, folder):
    check_runs(worlds[2].run(accelerate_resume, folder))
    states = [path.name for path in Path(folder).glob("gradwire*")]
    assert sorted(states) == ["gradwire_0.pt", "gradwire_1.pt"]


def accelerate_two_models(rank, folder):
    """Two models under one accelerator, trained and saved; which rank's steps did each load?"""
    with pytest.MonkeyPatch.context() as patch:
        as_under_torchrun(patch, rank)
        accelerator = Accelerator(cpu=True)
        models = [accelerator.prepare(Net()) for _ in range(2)]
        handles = [attach(accelerator, model, CODEC, **FEEDBACK) for model in models]
        for model, steps in zip(models, (1, 2), strict=True):
            for step in range(steps):
                model(data(rank, 16 * WIDTH, seed=step).view(16, WIDTH))["loss"].backward()
        accelerator.save_state(folder)
        for handle in handles:
            handle.load_state_dict({**handle.state_dict(), "step": 99})
        accelerator.load_state(folder)
        found = [handle.state_dict()["step"] for handle in handles]
        for handle in handles:
            handle.close()
        AcceleratorState._reset_state(reset_partial_state=True)
    return found


def test_accelerate_keeps_the_states_of_two_models_apart(worlds, folder):
    assert worlds[2].run(accelerate_two_models, folder) == [[1, 2], [1, 2]]


def accelerated_sharded():
    """Accelerate's own FSDP2, which it takes for GPUs only unless its states are told otherwise."""
    plugin = FullyShardedDataParallelPlugin(
        fsdp_version=2, auto_wrap_policy="size_based_wrap", min_num_params=1000
    )
    accelerator = Accelerator(cpu=True, fsdp_plugin=plugin)
    for state in (PartialState(), accelerator.state):
        state.distributed_type = DistributedType.FSDP
    accelerator.state.fsdp_plugin = plugin
    model = Net()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
    model, optimizer = accelerator.prepare(model, optimizer)
    assert isinstance(model, FSDPModule)
    return accelerator, model, optimizer, attach(accelerator, model, CODEC, **FEEDBACK)


def accelerate_sharded_resume(rank, folder):
    with pytest.MonkeyPatch.context() as patch:
        as_under_torchrun(patch, rank)
        patch.setenv("ACCELERATE_USE_FSDP", "true")  # the plugin sets it, and it must not stay
        run = accelerated_sharded()
        accelerated_steps(run, rank, range(3))
        run[0].save_state(folder)
        whole = accelerated_steps(run, rank, range(3, STEPS))
        again = accelerated_sharded()
        again[0].load_state(folder)
        resumed = accelerated_steps(again, rank, range(3, STEPS))
        AcceleratorState._reset_state(reset_partial_state=True)
    first, second = run[-1].stats(), again[-1].stats()
    assert (first.steps, second.steps) == (STEPS, STEPS - 3)
    assert first.bytes_per_step == second.bytes_per_step
    return whole, resumed, first.bytes_sent / float32_bytes(STEPS, sharded=True)


def test_fsdp2_of_accelerate_resumes_bit_for_bit(worlds, folder):
    check_runs(worlds[2].run(accelerate_sharded_resume, folder))


# The Hugging Face Trainer


def trainer_of(folder):
    examples = [{"x": data(i, WIDTH, seed=9)} for i in range(2 * 4 * STEPS)]
    args = TrainingArguments(
        output_dir=folder, use_cpu=True, max_steps=STEPS, save_steps=3, report_to=[],
        per_device_train_batch_size=4, disable_tqdm=True, learning_rate=1e-3,
        remove_unused_columns=False, ddp_find_unused_parameters=False,
    )  # fmt: skip
    return CompressedTrainer(
        Net(), args, train_dataset=examples, codec=CODEC, attach_options=FEEDBACK
    )


def trainer_resume(rank, folder):
    with pytest.MonkeyPatch.context() as patch:
        as_under_torchrun(patch, rank)
        trainer = trainer_of(folder)
        trainer.train()
        whole = weights(trainer.model)
        again = trainer_of(folder)
        again.train(resume_from_checkpoint=f"{folder}/checkpoint-3")
        resumed = weights(again.model)
        assert again.handle.state_dict()["step"] == STEPS
        assert again.handle.stats().bytes_per_step == trainer.handle.stats().bytes_per_step
        for each in (trainer, again):
            each.handle.close()
        AcceleratorState._reset_state(reset_partial_state=True)
    return whole, resumed, trainer.handle.stats().bytes_sent / float32_bytes(STEPS)


def test_the_trainer_resumes_bit_for_bit(worlds, folder):
    check_runs(worlds[2].run(trainer_resume, folder))
    assert (Path(folder) / "checkpoint-3" / "gradwire_1.pt").is_file()


def trainer_twice(rank, folder):
    with pytest.MonkeyPatch.context() as patch:
        as_under_torchrun(patch, rank)
        trainer = trainer_of(folder)
        trainer.train()
        trainer.train()
        trainer.handle.close()
        AcceleratorState._reset_state(reset_partial_state=True)
    return trainer.handle.stats().steps


def test_the_trainer_trains_twice(worlds, folder):
    assert worlds[2].run(trainer_twice, folder) == [2 * STEPS] * 2


# Lightning


class Module(lightning.LightningModule):
    def __init__(self):
        super().__init__()
        self.net = Net()

    def training_step(self, batch):
        return self.net(batch[0])["loss"]

    def configure_optimizers(self):
        return torch.optim.SGD(self.parameters(), lr=0.1, momentum=0.9)


class ShardedModule(Module):
    """The net within is FSDP2's, and the module around it Lightning's."""

    def configure_model(self):
        if not isinstance(self.net, FSDPModule):
            mesh = self.device_mesh["data_parallel"]
            for layer in self.net.net[::2]:
                fully_shard(layer, mesh=mesh)
            fully_shard(self.net, mesh=mesh)


def fit(folder, checkpoint=None, sharded=False):
    """Two epochs of three steps, from the start or from a checkpoint."""
    examples = TensorDataset(torch.stack([data(i, WIDTH, seed=9) for i in range(2 * 4 * 3)]))
    compress, module = Compress(CODEC, **FEEDBACK), ShardedModule() if sharded else Module()
    sizes = {"data_parallel_size": 2, "tensor_parallel_size": 1} if sharded else {}
    strategy = (ModelParallelStrategy if sharded else DDPStrategy)(
        process_group_backend="gloo", **sizes
    )
    trainer = lightning.Trainer(
        accelerator="cpu", devices=2, strategy=strategy, max_epochs=2, logger=False,
        plugins=[TorchElasticEnvironment()],
        enable_progress_bar=False, enable_model_summary=False, default_root_dir=folder,
        callbacks=[compress, ModelCheckpoint(folder, filename="{epoch}", save_top_k=-1)],
    )  # fmt: skip
    trainer.fit(module, DataLoader(examples, batch_size=4, shuffle=True), ckpt_path=checkpoint)
    return weights(module), compress.handle.stats()


def lightning_resume(rank, folder):
    with pytest.MonkeyPatch.context() as patch:
        as_under_torchrun(patch, rank)
        whole, stats = fit(folder)
        resumed, _ = fit(folder, f"{folder}/epoch=0.ckpt")
    return whole, resumed, stats.bytes_sent / float32_bytes(STEPS)


def lightning_sharded_resume(rank, folder):
    with pytest.MonkeyPatch.context() as patch:
        as_under_torchrun(patch, rank)
        whole, stats = fit(folder, sharded=True)
        resumed, again = fit(folder, f"{folder}/epoch=0.ckpt", sharded=True)
    assert 0 < again.steps < stats.steps
    assert again.bytes_per_step == stats.bytes_per_step
    return whole, resumed, stats.bytes_sent / float32_bytes(STEPS, sharded=True)


def test_fsdp2_of_lightning_resumes_bit_for_bit(worlds, folder):
    check_runs(worlds[2].run(lightning_sharded_resume, folder))


def test_lightning_resumes_bit_for_bit(worlds, folder):
    check_runs(worlds[2].run(lightning_resume, folder))
    saved = torch.load(f"{folder}/epoch=0.ckpt", weights_only=True)["callbacks"]["Compress"]
    mine, theirs = (
        state[f"rank{rank}"]["residuals"]["net.net.0.weight"]
        for rank, state in enumerate(saved["ranks"])
    )
    assert not torch.equal(mine, theirs)


# What they share


def missing_states(rank, folder):
    """A folder without states, then one where rank 1's node has lost them."""
    ddp = nn.parallel.DistributedDataParallel(Net())
    handle = gw.attach(ddp, CODEC)
    with only_first_warns(rank, "holds no state of gradwire: residuals start at zero"):
        load_from(folder, handle)
    own = f"{folder}/node{rank}"
    if rank == 0:
        Path(own).mkdir()
        torch.save(handle.state_dict(), Path(own) / "gradwire_0.pt")
    dist.barrier()
    with pytest.raises(FileNotFoundError, match=r"ranks \[1\] find no state of gradwire"):
        load_from(own, handle)
    save_to(folder, handle)
    load_from(folder, handle)
    handle.close()


def test_a_state_is_found_by_all_ranks_or_none(worlds, folder):
    worlds[2].run(missing_states, folder)


def test_one_process_has_nothing_to_attach():
    accelerator = Accelerator(cpu=True)
    with pytest.warns(UserWarning, match="qsgd:bits=2 is not attached: there is one worker"):
        assert attach(accelerator, accelerator.prepare(Net()), CODEC) is None
    AcceleratorState._reset_state(reset_partial_state=True)
