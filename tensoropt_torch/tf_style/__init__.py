"""A frontend in the style of TensorFlow 1, as the listing of the TensorOpt paper has it.

::

    import tensoropt_torch.tf_style as to

    to.init()
    x = to.placeholder([batch, 784], name="x")
    y = to.placeholder([batch], dtype=to.int64, name="y")
    w = to.get_variable("w", [784, 10])
    b = to.get_variable("b", [10], initializer=to.zeros_initializer())
    loss = to.softmax_cross_entropy(y, to.matmul(x, w) + b)
    train_op = to.GradientDescentOptimizer(0.01).minimize(loss)
    plan = to.find_strategy(option="mini_time", memory_limit=8e9)
    graph = to.build_execution_graph(engine="torch", plan=plan)
    for images, labels in batches:
        graph.run(train_op, feed_dict={x: images, y: labels})

Shapes are those of whole tensors and of the global batch; what a rank has of them is
not seen. Planning allocates nothing.
"""

from torch import bfloat16, bool, float16, float32, float64, int32, int64

from tensoropt_torch.tf_style.graph import Graph, reset_default_graph
from tensoropt_torch.tf_style.initializers import (
    constant_initializer,
    glorot_normal_initializer,
    glorot_uniform_initializer,
    ones_initializer,
    random_normal_initializer,
    random_uniform_initializer,
    truncated_normal_initializer,
    zeros_initializer,
)
from tensoropt_torch.tf_style.layers import (
    avg_pool,
    batch_norm,
    conv2d,
    layer_norm,
    lstm,
    max_pool,
)
from tensoropt_torch.tf_style.ops import (
    concat,
    constant,
    dropout,
    embedding_lookup,
    gelu,
    get_variable,
    matmul,
    placeholder,
    reduce_mean,
    reduce_sum,
    relu,
    reshape,
    sigmoid,
    softmax,
    softmax_cross_entropy,
    split,
    tanh,
    transpose,
    variable_scope,
)
from tensoropt_torch.tf_style.optimizers import (
    AdamOptimizer,
    GradientDescentOptimizer,
    MomentumOptimizer,
    TrainOp,
)
from tensoropt_torch.tf_style.session import (
    ExecutionGraph,
    build_execution_graph,
    find_frontier,
    find_strategy,
    init,
)
from tensoropt_torch.tf_style.tensor import Placeholder, Tensor, Variable

__all__ = [
    "AdamOptimizer",
    "ExecutionGraph",
    "GradientDescentOptimizer",
    "Graph",
    "MomentumOptimizer",
    "Placeholder",
    "Tensor",
    "TrainOp",
    "Variable",
    "avg_pool",
    "batch_norm",
    "bfloat16",
    "bool",
    "build_execution_graph",
    "concat",
    "constant",
    "constant_initializer",
    "conv2d",
    "dropout",
    "embedding_lookup",
    "find_frontier",
    "find_strategy",
    "float16",
    "float32",
    "float64",
    "gelu",
    "get_variable",
    "glorot_normal_initializer",
    "glorot_uniform_initializer",
    "init",
    "int32",
    "int64",
    "layer_norm",
    "lstm",
    "matmul",
    "max_pool",
    "ones_initializer",
    "placeholder",
    "random_normal_initializer",
    "random_uniform_initializer",
    "reduce_mean",
    "reduce_sum",
    "relu",
    "reset_default_graph",
    "reshape",
    "sigmoid",
    "softmax",
    "softmax_cross_entropy",
    "split",
    "tanh",
    "transpose",
    "truncated_normal_initializer",
    "variable_scope",
    "zeros_initializer",
]
