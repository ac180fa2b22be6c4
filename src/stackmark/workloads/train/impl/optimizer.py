"""The optimizer of a training step: torch's own, without the import of torch's compiler where nothing is compiled.

torch wraps some methods of its optimizers so that its compiler leaves them alone, and the wrappers import the compiler at
their first call: some 800 modules (sympy among them), 3.4 s of each run's set-up on a GPU server. No switch turns that off.
So where a step is not compiled the optimizer is a subclass that has the wrapped methods themselves: the same functions
call the same kernels in the same order. Torch's internals are neither replaced nor copied, and a wrapper that is unknown
here stays where it is: a torch that changes them costs seconds, not correctness.
"""

import functools
from typing import Any

import torch
from torch import nn

from stackmark.workloads.train.definition import TrainParams
from stackmark.workloads.versions import fused_since, has_torch, lacking

# The methods that a training run calls.
WRAPPED = ("add_param_group", "zero_grad", "step", "state_dict", "load_state_dict")
COMPILER = "torch._dynamo"


def build_optimizer(params: TrainParams, net: nn.Module) -> torch.optim.Optimizer:
    kind, options = _kind_and_options(params)
    if not params.compile:
        kind = without_compiler(kind)
    made: torch.optim.Optimizer = kind(
        _decay_groups(net, params.weight_decay), **{"lr": params.learning_rate, **options}
    )
    if options.get("nesterov") and params.fused and params.precision == "fp16":
        # Torch makes them uninitialised in the first step; where the loss scaler skips it, the second reads them so.
        for parameter in net.parameters():
            made.state[parameter]["momentum_buffer"] = torch.zeros_like(parameter)
    return made


def _kind_and_options(params: TrainParams) -> tuple[Any, dict[str, Any]]:
    """Choose the class, whose constructor takes options of its own, and the options."""
    # A captured step must not keep its step count on the host.
    capturable: dict[str, Any] = {"capturable": True} if params.cuda_graph else {}
    fused: dict[str, Any] = {"fused": True} if params.fused else {}
    if params.fused and not has_torch(since := fused_since(params.optimizer, params.device)):
        raise lacking(f"a fused step of {params.optimizer} on {params.device} (--fused)", since)
    if params.optimizer in ("sgd", "momentum"):
        momentum = params.momentum if params.optimizer == "momentum" else 0.0
        return torch.optim.SGD, {"momentum": momentum, "nesterov": momentum > 0, **fused}
    if params.optimizer == "rmsprop":
        own = {"alpha": params.rmsprop_decay, "momentum": params.rmsprop_momentum, "eps": params.rmsprop_epsilon}
        return torch.optim.RMSprop, {**own, **capturable}
    moments = {"betas": (params.adam_beta1, params.adam_beta2), "eps": params.adam_epsilon}
    return torch.optim.Adam if params.optimizer == "adam" else torch.optim.AdamW, {**moments, **fused, **capturable}


def _decay_groups(net: nn.Module, weight_decay: float) -> list[dict[str, Any]]:
    """Weight decay leaves the parameters of normalisation layers alone, as the classic does."""
    spared = {
        id(p) for module in net.modules() if "Norm" in type(module).__name__ for p in module.parameters(recurse=False)
    }
    parameters = [p for p in net.parameters() if p.requires_grad]
    return [
        {"params": [p for p in parameters if id(p) not in spared], "weight_decay": weight_decay},
        {"params": [p for p in parameters if id(p) in spared], "weight_decay": 0.0},
    ]


@functools.cache
def without_compiler(kind: type[torch.optim.Optimizer]) -> type[torch.optim.Optimizer]:
    """Make a subclass whose methods do not import the compiler. It has the name that traces show."""
    methods: dict[str, Any] = {}
    for name in WRAPPED:
        method, unwrapped = _unwrap(getattr(kind, name))
        if unwrapped:
            # The wrapper of `step` also turns gradients off.
            methods[name] = torch.no_grad()(method) if name == "step" else method
    return type(kind.__name__, (kind,), methods)


def _unwrap(method: Any) -> tuple[Any, bool]:
    """Take the wrappers off that import the compiler, and whether there were any.

    Torch wraps `step` once more, for its profiler, when an optimizer is made, and marks it `hooked`: the subclass gets its own.
    """
    unwrapped = False
    while hasattr(method, "__wrapped__"):
        imports = COMPILER in method.__code__.co_names
        if not imports and not getattr(method, "hooked", False):
            break
        unwrapped = unwrapped or imports
        method = method.__wrapped__
    return method, unwrapped
