"""The metrics that training programs emit: names, units, kinds and what they mean.

The catalogue describes; it restricts nothing. Any other name is carried and aggregated all the same.
"""

from collections.abc import Iterator
from functools import lru_cache
from typing import Literal

import msgspec

__all__ = ["BARE_NAME", "METRICS", "STEP_LIKE", "Metric", "describe", "is_step_like", "lookup"]

BARE_NAME = "metrics"
"""The name of observations whose fields are whole names already, as programs give them to W&B: a sink
that puts an event's name before its fields puts none before theirs."""


class Metric(msgspec.Struct, frozen=True, kw_only=True):
    """A metric; `unit` is UCUM as OpenTelemetry writes it: "1" is a ratio, "{token}" a count."""

    name: str
    group: str
    unit: str
    text: str
    kind: Literal["gauge", "counter"] = "gauge"
    aliases: tuple[str, ...] = ()


def _metrics(group: str, *rows: tuple[str, str, str, str]) -> Iterator[Metric]:
    """Yield the metrics of one group from (name, unit, text, aliases); "+" marks a counter."""
    for name, unit, text, aliases in rows:
        yield Metric(
            name=name.rstrip("+"),
            group=group,
            unit=unit,
            text=text,
            kind="counter" if name.endswith("+") else "gauge",
            aliases=tuple(aliases.split()),
        )


METRICS: tuple[Metric, ...] = (
    *_metrics(
        "training",
        ("loss", "1", "training loss", "train_loss training_loss step_loss mean_loss"),
        ("eval_loss", "1", "loss on held-out data", "val_loss validation_loss test_loss"),
        ("perplexity", "1", "exp of the loss per token", "ppl eval_perplexity val_perplexity"),
        ("accuracy", "1", "share of right answers", "acc eval_accuracy val_accuracy"),
        ("learning_rate", "1", "learning rate of the optimiser", "lr current_lr inner_lr"),
        ("outer_learning_rate", "1", "learning rate of the outer optimiser", "outer_lr"),
        ("grad_norm", "1", "norm of the gradient", "gradient_norm total_grad_norm mean_grad_norm"),
        ("weight_norm", "1", "norm of the parameters", "param_norm parameter_norm"),
        ("update_norm", "1", "norm of a step's change of the parameters", "delta_norm"),
        ("loss_scale", "1", "factor that keeps half-precision gradients in range", "amp_scale"),
        ("batch_size", "{sample}", "samples of a step", "global_batch_size effective_batch_size"),
        ("sequence_length", "{token}", "tokens of a sample", "seq_len max_seq_len"),
        ("reward", "1", "mean reward of reinforcement learning", "mean_reward avg_reward"),
        ("kl_divergence", "1", "distance from the reference policy", "kl kl_div approx_kl"),
        ("entropy", "1", "entropy of the policy", "policy_entropy"),
    ),
    *_metrics(
        "throughput",
        (
            "tokens_per_second",
            "{token}/s",
            "tokens trained on a second",
            "tokens_per_sec tok_s tps throughput",
        ),
        ("samples_per_second", "{sample}/s", "samples trained on a second", "samples_per_sec"),
        ("tokens_total+", "{token}", "tokens trained on so far", "total_tokens num_tokens"),
        ("batch_tokens", "{token}", "tokens of a batch", "tokens_per_batch"),
        ("step_time", "s", "how long a step took", "step_duration iter_time time_per_step"),
        ("batch_time", "s", "how long a batch took", "batch_duration"),
        ("data_time", "s", "how long a step waited for data", "data_load_time data_wait_time"),
        ("window_time", "s", "how long a window took", "window_total_time"),
        ("mfu", "1", "share of the hardware's arithmetic that was used", "model_flops_utilization"),
    ),
    *_metrics(
        "network of nodes",
        ("active_peers", "{peer}", "peers that took part", "num_peers peer_count peers"),
        ("skipped_peers", "{peer}", "peers that were left out", "num_skipped_peers"),
        ("peer_success_rate", "1", "share of peers whose data arrived", "success_rate"),
        (
            "sync_status",
            "1",
            "1 if the node is in step with the others",
            "synced in_sync is_synced",
        ),
        ("steps_behind", "{step}", "how far the node is behind", "avg_steps_behind sync_lag"),
        ("sync_time", "s", "how long catching up took", "catch_up_time"),
        ("gather_time", "s", "how long gathering gradients took", "allreduce_time"),
        ("put_time", "s", "how long uploading gradients took", "upload_time push_time"),
        ("compression_ratio", "1", "size before compression over size after", "compress_ratio"),
        ("gradient_bytes", "By", "size of a gradient as it is sent", "payload_bytes upload_bytes"),
        ("clock_skew", "s", "the node's clock minus the reference", "clock_offset time_offset"),
    ),
    *_metrics(
        "scoring",
        ("score", "1", "a validator's score of a miner", "final_score moving_avg_score"),
        ("gradient_score", "1", "how much a gradient lowered the loss", "grad_score"),
        ("sync_score", "1", "how well a miner keeps in step", ""),
        ("rating", "1", "skill rating of a miner", "openskill_mu openskill_ordinal elo"),
        ("weight", "1", "weight set on the chain", "chain_weight"),
        ("incentive", "1", "share of the incentive that a miner gets", ""),
        ("dividends", "1", "share of the dividends that a validator gets", ""),
        ("trust", "1", "share of validators that agree on a node", "validator_trust vtrust"),
        ("consensus", "1", "agreed score of a node", ""),
        ("emission", "1", "what the chain pays a node", ""),
        ("stake", "1", "what stands behind a node", "total_stake"),
        ("rank", "1", "place of a node in its subnet", ""),
    ),
    *_metrics(
        "host",
        (
            "cpu_percent",
            "%",
            "use of all processors",
            "cpu cpu_usage cpu_utilization sys_cpu_usage",
        ),
        ("load_1m", "1", "processes that run or wait, mean of a minute", "load load_avg load_1"),
        ("memory_percent", "%", "use of memory", "mem_percent ram_percent memory_usage"),
        ("memory_used", "By", "memory in use", "mem_used ram_used sys_mem_used"),
        ("memory_total", "By", "memory there is", "mem_total ram_total sys_mem_total"),
        ("memory_available", "By", "memory that programs can still get", "mem_available"),
        ("process_memory", "By", "resident memory of this process", "rss process_rss"),
        ("process_cpu_percent", "%", "use of one processor by this process", "process_cpu"),
        ("process_threads", "{thread}", "threads of this process", "num_threads"),
        ("disk_percent", "%", "use of the disk", "disk_usage"),
        ("disk_used", "By", "disk space in use", ""),
        ("disk_free", "By", "disk space left", "disk_available"),
        ("disk_read+", "By", "bytes read from disks", "disk_read_bytes"),
        ("disk_written+", "By", "bytes written to disks", "disk_write_bytes disk_write"),
        ("network_received+", "By", "bytes received", "net_recv net_bytes_recv bytes_recv"),
        ("network_sent+", "By", "bytes sent", "net_sent net_bytes_sent bytes_sent"),
    ),
    *_metrics(
        "gpu",
        ("gpu_utilization", "%", "share of time a kernel ran", "gpu gpu_util utilization_gpu"),
        ("gpu_memory_utilization", "%", "share of time memory was used", "utilization_memory"),
        ("gpu_memory_used", "By", "memory of the GPU in use", "gpu_mem_used vram_used"),
        ("gpu_memory_free", "By", "memory of the GPU left", "gpu_mem_free vram_free"),
        ("gpu_memory_total", "By", "memory the GPU has", "gpu_mem_total vram_total"),
        ("gpu_memory_allocated", "By", "memory torch has given to tensors", "gpu_mem_allocated"),
        ("gpu_memory_reserved", "By", "memory torch keeps", "gpu_mem_cached gpu_memory_cached"),
        ("gpu_memory_peak", "By", "most memory tensors had at once", "gpu_memory_max_allocated"),
        ("gpu_memory_segments", "{segment}", "pieces of memory torch got from the driver", ""),
        ("gpu_memory_fragmentation", "1", "share of memory torch keeps unused", ""),
        ("gpu_temperature", "Cel", "temperature of the GPU", "gpu_temp temperature"),
        ("gpu_power", "W", "power the GPU draws", "power_draw gpu_power_draw gpu_power_usage"),
        ("gpu_power_limit", "W", "power the GPU may draw", "power_limit"),
        ("gpu_energy+", "J", "energy the GPU has used since its driver was loaded", ""),
        ("gpu_clock", "MHz", "clock of the GPU's processors", "gpu_clock_sm sm_clock"),
        ("gpu_memory_clock", "MHz", "clock of the GPU's memory", "gpu_clock_mem mem_clock"),
        ("gpu_throttled", "1", "1 while heat or power holds the GPU's clock down", "throttled"),
        ("gpu_ecc_errors+", "{error}", "memory errors not corrected since the driver's start", ""),
        ("gpu_pcie_generation", "1", "generation of the link that the GPU uses now", ""),
        ("gpu_pcie_width", "{lane}", "lanes of the link that the GPU uses now", ""),
    ),
)
"""Every metric of the catalogue."""

STEP_LIKE: frozenset[str] = frozenset(
    """
    step steps global_step global_steps current_step train_step training_step optimizer_step
    optim_step trainer_step inner_step inner_steps outer_step outer_steps local_step micro_step
    eval_step num_steps total_steps step_number step_num step_idx step_index
    epoch epochs current_epoch global_epoch local_epoch num_epochs epoch_idx
    window windows sync_window current_window global_window start_window eval_window window_number
    block blocks current_block block_number block_height sync_block
    batch batch_id batch_idx batch_index batch_number batch_num micro_batch microbatch minibatch
    iteration iterations iter iters it current_iteration global_iteration iter_num
    round round_number current_round
    """.split()  # noqa: SIM905 - easier to read than a hundred quotes
)
"""Names of fields that say where training stands; a mean of them says nothing."""


@lru_cache(maxsize=8192)
def is_step_like(name: str) -> bool:
    """Whether a field says where training stands, such as `global_step` or `train/epoch`."""
    return any(spelling in STEP_LIKE for spelling in _spellings(name))


@lru_cache(maxsize=8192)
def lookup(name: str) -> Metric | None:
    """Return the metric that trainers mean by a name such as `lr` or `train/grad-norm`."""
    for spelling in _spellings(name):
        if spelling in _BY_NAME:
            return _BY_NAME[spelling]
    return None


def describe() -> str:
    """Return the catalogue as a table in Markdown; docs/events.md holds it."""
    lines = [
        "| metric | unit | kind | what it is | also known as |",
        "| --- | --- | --- | --- | --- |",
    ]
    group = ""
    for metric in METRICS:
        if metric.group != group:
            group = metric.group
            lines.append(f"| **{group}** | | | | |")
        aliases = ", ".join(f"`{a}`" for a in metric.aliases)
        lines.append(
            f"| `{metric.name}` | `{metric.unit}` | {metric.kind} | {metric.text} | {aliases} |"
        )
    return "\n".join(lines)


def _spellings(name: str) -> Iterator[str]:
    """Yield a name as the catalogue writes it: all of it, then what follows the last slash or dot."""
    plain = name.replace("-", "_").replace(" ", "_")
    if not plain.islower():
        plain = "".join(
            f"_{c}" if c.isupper() and plain[k - 1 : k].islower() else c
            for k, c in enumerate(plain)
        ).lower()
    yield plain.replace("/", "_").replace(".", "_")
    yield plain.replace(".", "/").rpartition("/")[2]


_BY_NAME = {name: metric for metric in METRICS for name in (metric.name, *metric.aliases)}
