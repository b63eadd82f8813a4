// The cut nodes of a graph, which linear dynamic programming walks along.
//
// A node that cuts the graph in two (the layers before it from those after it)
// is better never eliminated between its neighbours: all that is inside the
// blocks is eliminated first, and what is left is a chain (or a tree) of such
// nodes, which is eaten from its ends with tables over one node only. That is
// FT-LDP of the paper, on trees as well as on chains.
#pragma once

#include <vector>

namespace tensoropt {

using Adjacency = std::vector<std::vector<int>>;  // sorted, without repetition

// Nodes whose removal disconnects their component. O(nodes + edges).
std::vector<bool> articulation_nodes(const Adjacency& graph);

// Nodes left when nodes of degree <= 1 are taken away until there is none.
std::vector<bool> two_core(const Adjacency& graph);

// The nodes to keep until they are leaves: cut nodes of the 2-core, inner
// nodes of the trees that hang on it, and nodes of the core with a tree that
// are of the same `kind` as a cut node (the ends of the first and the last
// layer, so that these look like the layers in between).
std::vector<bool> find_cut_nodes(const Adjacency& graph,
                                 const std::vector<const void*>& kind);

}  // namespace tensoropt
