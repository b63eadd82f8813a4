// Times the search on synthetic problems of the sizes of real ones, and prints
// the results as JSON.
//
//   search_benchmark                       # the standard set
//   search_benchmark LAYERS EPSILON [SHAPE] [THREADS] [ALGORITHM]
//
// The problems imitate transformers on 16 devices: 4 mesh axes of 2, each of
// which replicates a value or splits its batch, sequence or features. A config
// is a count of axes for every use (35 of them) and some variant of the
// operator (what is kept, how gradients are summed). Times have a few percent
// of noise, as measured ones do. SHAPE: plain, tied (first and last layer share
// a parameter: a ring), hub (one value used by all layers).

#include <algorithm>
#include <array>
#include <cstdio>
#include <cstdlib>
#include <map>
#include <memory>
#include <string>
#include <tuple>
#include <utility>
#include <vector>

#include "common/hash.h"
#include "search/frontier_tracking.h"

namespace tensoropt {
namespace {

constexpr double kBytesPerSecond = 5e10;
constexpr double kLatency = 2e-5;

// How many mesh axes replicate a value (0) or split its batch (1), sequence
// (2) or features (3). In a linear operator: 2 splits the outputs, 3 the sum.
using Layout = std::array<int, 4>;

const std::vector<Layout>& layouts() {
  static const std::vector<Layout> all = [] {
    std::vector<Layout> result;
    for (int a = 0; a <= 4; ++a) {
      for (int b = 0; a + b <= 4; ++b) {
        for (int c = 0; a + b + c <= 4; ++c) {
          result.push_back({4 - a - b - c, a, b, c});
        }
      }
    }
    return result;
  }();
  return all;
}

Layout layout_of(int config) { return layouts()[config % layouts().size()]; }
int variant_of(int config) {
  return config / static_cast<int>(layouts().size());
}

double shards(const Layout& layout) { return 1 << (4 - layout[0]); }

// A factor close to 1 that depends on nothing but its arguments.
double noise(std::size_t table, std::size_t a, std::size_t b) {
  const std::size_t hash = hash_combine(hash_combine(table, a), b);
  return 0.97 + 0.06 * static_cast<double>(hash % 10007) / 10007;
}

struct Operator {
  enum class Kind { kElementwise, kLinear, kParameter };
  Kind kind;
  int num_configs;
  double seconds;      // on one device
  double saved_bytes;  // for backward, on one device
  std::size_t seed;
};

Layout output_of(const Operator& op, int config) {
  const Layout l = layout_of(config);
  if (op.kind != Operator::Kind::kLinear) return l;
  return {l[0] + l[3], l[1], 0, l[2]};
}

Layout input_of(const Operator& op, int config) {
  const Layout l = layout_of(config);
  if (op.kind != Operator::Kind::kLinear) return l;
  return {l[0] + l[2], l[1], 0, l[3]};
}

// A sum that is split needs a collective.
std::shared_ptr<const NodeTable> node_table(const Operator& op) {
  std::vector<std::vector<Choice>> choices(op.num_configs);
  for (int c = 0; c < op.num_configs; ++c) {
    const Layout layout = layout_of(c);
    const double local = op.saved_bytes / shards(layout);
    double time = op.seconds / shards(layout);
    if (op.kind == Operator::Kind::kLinear && layout[3] > 0) {
      time += kLatency +
              2 * op.saved_bytes / shards(output_of(op, c)) / kBytesPerSecond;
    }
    time += kLatency * 0.1 * variant_of(c);
    const double memory = local * (1 + 0.2 * (variant_of(c) % 3));
    choices[c].push_back({memory, time * noise(op.seed, c, 0), 0});
  }
  return std::make_shared<NodeTable>(std::move(choices));
}

double reshard_seconds(const Layout& from, const Layout& to, double bytes) {
  double time = 0;
  for (int i = 1; i < 4; ++i) {
    if (from[i] == to[i]) continue;
    const double local = bytes / std::min(shards(from), shards(to));
    time += kLatency + local / kBytesPerSecond;
  }
  return time;
}

// Up to three points: keep the value before, after, or both.
std::shared_ptr<const EdgeTable> reshard_table(const Operator& source,
                                               const Operator& target,
                                               double bytes, std::size_t seed) {
  EdgeTable::Builder builder(source.num_configs, target.num_configs);
  for (int s = 0; s < source.num_configs; ++s) {
    for (int t = 0; t < target.num_configs; ++t) {
      const Layout from = output_of(source, s);
      const Layout to = input_of(target, t);
      const double before = bytes / shards(from);
      const double after = bytes / shards(to);
      const double kept = variant_of(s) % 2 == 0 ? before : 0;
      if (from == to) {
        builder.add(s, t, {kept, kLatency * 0.01 * variant_of(t), 0});
        continue;
      }
      const double step = reshard_seconds(from, to, bytes) * noise(seed, s, t);
      builder.add(s, t, {before, 3 * step, 0});
      builder.add(s, t, {after + kept, 2 * step, 1});
      builder.add(s, t, {before + after + kept, 1.9 * step, 2});
    }
  }
  return std::move(builder).build();
}

// Weights are stored in one layout and used in another; the gradient is summed
// over the axes that split the batch.
std::shared_ptr<const EdgeTable> weight_table(const Operator& parameter,
                                              const Operator& linear,
                                              double bytes, std::size_t seed) {
  EdgeTable::Builder builder(parameter.num_configs, linear.num_configs);
  for (int s = 0; s < parameter.num_configs; ++s) {
    for (int t = 0; t < linear.num_configs; ++t) {
      const Layout stored = layout_of(s);
      const Layout op = layout_of(t);
      const Layout used{op[0] + op[1], 0, op[2], op[3]};
      const double local = bytes / shards(used);
      const double gather = reshard_seconds(stored, used, bytes);
      const double sum = op[1] == 0 ? 0 : kLatency + local / kBytesPerSecond;
      const double factor = noise(seed, s, t);
      if (gather == 0) {
        builder.add(s, t, {0, 2 * sum * factor, 0});
        continue;
      }
      builder.add(s, t, {0, (2 * gather + sum) * factor, 0});
      builder.add(s, t, {local, (gather + sum) * factor, 1});
    }
  }
  return std::move(builder).build();
}

// One target for every source.
std::shared_ptr<const EdgeTable> follow_table(int configs) {
  EdgeTable::Builder builder(configs, configs);
  for (int c = 0; c < configs; ++c) builder.add(c, c, {0, 0, 0});
  return std::move(builder).build();
}

class TransformerProblem {
 public:
  TransformerProblem(int num_layers, const std::string& shape) : shape_(shape) {
    const int embedding = add(linear_);
    const int weight = parameter(embedding, 3e8);
    int value = add(relay_);
    connect(embedding, value, narrow_);
    if (shape_ == "hub") hub_ = add(mask_);
    for (int layer = 0; layer < num_layers; ++layer) {
      value = mlp(attention(value));
    }
    const int norm = add(norm_);
    connect(value, norm, narrow_);
    const int head = add(linear_);
    connect(norm, head, narrow_);
    if (shape_ == "tied") {
      connect(weight, head, 3e8);
    } else {
      parameter(head, 3e8);
    }
  }

  const Problem& problem() const { return problem_; }

 private:
  int add(const Operator& op) {
    auto& table = node_tables_[op.seed];
    if (table == nullptr) table = node_table(op);
    problem_.nodes.push_back(table);
    operators_.push_back(&op);
    return static_cast<int>(problem_.nodes.size()) - 1;
  }

  // Equal edges share a table.
  void connect(int from, int to, double bytes) {
    const Operator& source = *operators_[from];
    const Operator& target = *operators_[to];
    auto& table = edge_tables_[{source.seed, target.seed, bytes}];
    if (table == nullptr) {
      const auto make = source.kind == Operator::Kind::kParameter
                            ? weight_table
                            : reshard_table;
      table = make(source, target, bytes, edge_tables_.size());
    }
    problem_.edges.push_back({from, to, table});
  }

  int parameter(int user, double bytes) {
    const int node = add(parameter_);
    connect(node, user, bytes);
    return node;
  }

  int attention(int input) {
    const int norm = add(norm_);
    connect(input, norm, narrow_);
    const int qkv = add(linear_);
    connect(norm, qkv, narrow_);
    parameter(qkv, weights_);
    const int view = add(view_);
    problem_.edges.push_back({qkv, view, follow_});
    const int attention = add(attention_);
    connect(view, attention, wide_);
    if (hub_ >= 0) connect(hub_, attention, narrow_);
    const int projection = add(linear_);
    connect(attention, projection, narrow_);
    parameter(projection, weights_);
    return residual(input, projection);
  }

  int mlp(int input) {
    const int norm = add(norm_);
    connect(input, norm, narrow_);
    const int up = add(linear_);
    connect(norm, up, narrow_);
    parameter(up, weights_);
    const int gelu = add(gelu_);
    connect(up, gelu, wide_);
    const int down = add(linear_);
    connect(gelu, down, wide_);
    parameter(down, weights_);
    return residual(input, down);
  }

  int residual(int skip, int branch) {
    const int sum = add(sum_);
    connect(branch, sum, narrow_);
    connect(skip, sum, narrow_);
    const int value = add(relay_);
    connect(sum, value, narrow_);
    return value;
  }

  using Kind = Operator::Kind;
  static constexpr double narrow_ = 1e8;   // bytes of a value between layers
  static constexpr double wide_ = 4e8;     // bytes of a value inside them
  static constexpr double weights_ = 3e7;  // bytes of the weights of a linear
  const Operator relay_{Kind::kElementwise, 350, 1e-4, 1e8, 1};
  const Operator norm_{Kind::kElementwise, 30, 1e-3, 1e8, 2};
  const Operator linear_{Kind::kLinear, 175, 3e-2, 1e8, 3};
  const Operator view_{Kind::kLinear, 175, 0, 0, 4};
  const Operator attention_{Kind::kElementwise, 30, 3e-2, 2e8, 5};
  const Operator sum_{Kind::kElementwise, 175, 1e-3, 0, 6};
  const Operator gelu_{Kind::kElementwise, 80, 2e-3, 4e8, 7};
  const Operator parameter_{Kind::kParameter, 80, 1e-5, 1.2e8, 8};
  const Operator mask_{Kind::kElementwise, 80, 1e-5, 1e7, 9};
  const std::shared_ptr<const EdgeTable> follow_ = follow_table(175);
  const std::string shape_;
  std::map<std::size_t, std::shared_ptr<const NodeTable>> node_tables_;
  std::map<std::tuple<std::size_t, std::size_t, double>,
           std::shared_ptr<const EdgeTable>>
      edge_tables_;
  std::vector<const Operator*> operators_;  // by node
  int hub_ = -1;
  Problem problem_;
};

// One node elimination, 350 x 175 configs with 80 in the middle.
Problem one_elimination() {
  using Kind = Operator::Kind;
  const Operator outer{Kind::kElementwise, 350, 1e-3, 1e8, 1};
  const Operator middle{Kind::kElementwise, 80, 5e-2, 1e8, 2};
  const Operator inner{Kind::kLinear, 175, 1e-3, 1e8, 3};
  return {{node_table(outer), node_table(middle), node_table(inner)},
          {{0, 1, reshard_table(outer, middle, 1e8, 1)},
           {1, 2, reshard_table(middle, inner, 1e8, 2)},
           {0, 2, reshard_table(outer, inner, 1e8, 3)}}};
}

bool first_run = true;

void run(const std::string& name, const Problem& problem,
         const SearchOptions& options) {
  const SearchResult result = search(problem, options);
  const SearchStats& stats = result.stats();
  std::printf(
      "%s\n  {\"name\": \"%s\", \"nodes\": %zu, \"edges\": %zu, "
      "\"algorithm\": \"%s\", \"epsilon\": %g, \"threads\": %d,\n"
      "   \"schedule_s\": %.3f, \"bound_s\": %.3f, \"product_s\": %.3f, "
      "\"points\": %zu, \"passes\": %d, \"rounds\": %d, \"cells\": %lld, "
      "\"cells_alive\": %lld,\n   "
      "\"proved_epsilon\": %.3g, \"exact\": %s,\n"
      "   \"largest_frontier\": %lld, \"pairs\": %lld, \"pairs_pruned\": %lld, "
      "\"products_computed\": %d, \"products_reused\": %d,\n"
      "   \"least_memory_bytes\": %.6g, \"least_time_s\": %.6g}",
      first_run ? "[" : ",", name.c_str(), problem.nodes.size(),
      problem.edges.size(),
      options.algorithm == Algorithm::kLdp ? "ldp" : "elimination",
      options.epsilon, options.num_threads, stats.schedule_seconds,
      stats.bound_seconds, stats.product_seconds, result.points().size(),
      stats.bound_passes, stats.rounds, static_cast<long long>(stats.cells),
      static_cast<long long>(stats.cells_alive), result.epsilon(),
      result.exact() ? "true" : "false",
      static_cast<long long>(stats.largest_frontier),
      static_cast<long long>(stats.pairs),
      static_cast<long long>(stats.pairs_pruned), stats.products_computed,
      stats.products_reused, result.min_memory(), result.points().back().time);
  std::fflush(stdout);
  first_run = false;
}

void run_transformer(const std::string& shape, int layers,
                     const SearchOptions& options) {
  const TransformerProblem transformer(layers, shape);
  run(shape + "_" + std::to_string(layers), transformer.problem(), options);
}

void run_standard_set() {
  SearchOptions options;
  run("one_elimination", one_elimination(), options);
  options.epsilon = 1e-2;
  for (const int layers : {2, 12, 32})
    run_transformer("plain", layers, options);
  run_transformer("tied", 12, options);
  run_transformer("hub", 12, options);
  options.algorithm = Algorithm::kElimination;
  run_transformer("plain", 12, options);
}

}  // namespace
}  // namespace tensoropt

int main(int argc, char** argv) {
  using tensoropt::Algorithm;
  if (argc < 3) {
    tensoropt::run_standard_set();
  } else {
    tensoropt::SearchOptions options;
    options.epsilon = std::atof(argv[2]);
    if (argc > 4) options.num_threads = std::atoi(argv[4]);
    if (argc > 5) options.algorithm = Algorithm::kElimination;
    const std::string shape = argc > 3 ? argv[3] : "plain";
    if (shape == "one") {
      tensoropt::run("one_elimination", tensoropt::one_elimination(), options);
    } else {
      tensoropt::run_transformer(shape, std::atoi(argv[1]), options);
    }
  }
  std::printf("\n]\n");
}
