"""Small passes that normalise a captured graph, in the order of ``normalise``.

Each takes an ``fx.Graph`` of ATen calls and changes it in place; the module it
describes computes the same numbers before and after. Of gradients the order of sums may change.
"""

from __future__ import annotations

from torch import fx

from tensoropt_torch.frontend.passes.attention import (
    drop_plain_masks,
    drop_true_operands,
    group_repeated_heads,
    indices_to_views,
)
from tensoropt_torch.frontend.passes.bags import bags_to_rows
from tensoropt_torch.frontend.passes.cleanup import (
    drop_empty_parts,
    drop_idle_dropouts,
    drop_idle_sets,
    eliminate_dead_code,
    remove_identities,
    strip_assertions,
)
from tensoropt_torch.frontend.passes.composites import decompose_composites
from tensoropt_torch.frontend.passes.constants import fold_constants
from tensoropt_torch.frontend.passes.experts import join_routed_experts
from tensoropt_torch.frontend.passes.forms import (
    broadcasts_to_expands,
    casts_without_example,
    factories_without_example,
    split_recurrent_stacks,
    views_to_reshapes,
)
from tensoropt_torch.frontend.passes.functional import (
    check_running_statistics,
    functionalise_in_place,
    trained_nodes,
)
from tensoropt_torch.frontend.passes.fused import BLOCKS, WANTED_BLOCKS, Blocks, see_blocks
from tensoropt_torch.frontend.passes.grouped_batch_norm import group_batch_norms
from tensoropt_torch.frontend.passes.merged_dims import (
    keep_rows_apart,
    split_before_permutations,
)
from tensoropt_torch.frontend.passes.nodes import (
    BUFFER,
    FOLDED,
    Pass,
    changes_memory,
    gives_views,
    running_statistics,
    target_name,
)
from tensoropt_torch.frontend.passes.out_arguments import make_out_calls_functional
from tensoropt_torch.frontend.passes.recurrent import take_gates, write_out_states
from tensoropt_torch.frontend.passes.regions import inline_regions
from tensoropt_torch.frontend.passes.returned_constants import copy_returned_constants
from tensoropt_torch.frontend.passes.row_positions import row_positions_to_gathers
from tensoropt_torch.frontend.passes.sections import make_sections
from tensoropt_torch.frontend.passes.sparse_gradients import make_gradients_dense
from tensoropt_torch.frontend.passes.transposed import take_weights_as_they_are

PASSES: tuple[Pass, ...] = (
    inline_regions,
    make_out_calls_functional,
    strip_assertions,
    drop_idle_dropouts,
    drop_idle_sets,
    functionalise_in_place,
    check_running_statistics,
    make_gradients_dense,
    remove_identities,
    drop_empty_parts,
    broadcasts_to_expands,
    split_recurrent_stacks,
    factories_without_example,
    casts_without_example,
    views_to_reshapes,
    eliminate_dead_code,
    indices_to_views,
    row_positions_to_gathers,
    bags_to_rows,
    drop_true_operands,
    drop_plain_masks,
    group_repeated_heads,
    join_routed_experts,
    fold_constants,
    write_out_states,
    take_gates,
    decompose_composites,
    views_to_reshapes,
    split_before_permutations,
    take_weights_as_they_are,
    eliminate_dead_code,
    see_blocks,
    make_sections,
    keep_rows_apart,
    copy_returned_constants,
    eliminate_dead_code,
)


def normalise(graph: fx.Graph) -> None:
    """Run all passes."""
    for run in PASSES:
        run(graph)
    graph.lint()


__all__ = [
    "BLOCKS",
    "BUFFER",
    "FOLDED",
    "PASSES",
    "WANTED_BLOCKS",
    "Blocks",
    "Pass",
    "changes_memory",
    "gives_views",
    "group_batch_norms",
    "normalise",
    "running_statistics",
    "target_name",
    "trained_nodes",
]
