// Rules that users declare as data for operators of their own.
//
//   DeclaredRule declared{"mylib.scaled_add.default",
//                         parse_pattern("b n, b n, n -> b n"),
//                         {"x", "y", "scale"}};
//   registry.add(declared.target, definition_of(declared));
//
// The pattern has one term for each tensor argument of the operator's schema.
// Arguments that a call leaves out have no operand, all tensors of a list have
// the term of the list.
#pragma once

#include <functional>
#include <map>
#include <string>
#include <vector>

#include "rules/notation.h"

namespace tensoropt {

// A call on one rank, by names of factors: what its literals are computed from.
struct FactorParts {
  const Node& node;
  std::map<std::string, int> parts;  // into how many parts each is split
  std::map<std::string, int> part;   // which of them this rank has
};

struct DeclaredRule {
  std::string target;
  Pattern pattern;
  std::vector<std::string> tensors;  // tensor arguments in schema order

  // By names of tensor arguments.
  std::vector<std::vector<std::string>> linear_in = {};
  std::vector<std::string> additive = {};
  std::vector<std::string> saves = {};
  std::vector<int> saves_outputs = {};

  // Factors whose reduction is a mean: the result on a part is weighted by the
  // share of the part.
  std::vector<std::string> mean = {};
  // Factors whose size is that of an integer argument, as the heads in a dim of
  // heads * width. On a rank the argument is the local size.
  std::map<std::string, std::string> sizes = {};

  // FLOPs of forward: of an element of output 0, or of the whole operator given
  // the shapes of its operands. Backward takes twice as many.
  double flops_per_element = 1;
  std::function<double(const std::vector<Shape>&)> flops = {};
  bool random = false;
  bool repeatable = true;  // it may run once more in backward

  // Literals that differ on a rank, if any.
  std::function<std::vector<NamedArgument>(const FactorParts&)> local = {};
  // What tells the functions above from others, for `text_of`.
  std::string functions = {};
};

// Throws UserError if the rule contradicts itself: a name that is not there, a
// number of terms that does not fit.
OpDefinition definition_of(const DeclaredRule& declared);

// Everything that the rule says, as text: equal for equal rules.
std::string text_of(const DeclaredRule& declared);

}  // namespace tensoropt
