#include "rules/notation.h"

#include <algorithm>
#include <cctype>

#include "common/check.h"

namespace tensoropt {

namespace {

constexpr std::string_view kArrow = "->";

bool is_name(std::string_view word) {
  const auto letter_or_digit = [](char c) {
    return std::isalnum(static_cast<unsigned char>(c)) != 0;
  };
  return std::isalpha(static_cast<unsigned char>(word.front())) != 0 &&
         std::all_of(word.begin(), word.end(), letter_or_digit);
}

// The parts of `text` between separators.
std::vector<std::string_view> cut(std::string_view text, char separator) {
  std::vector<std::string_view> parts;
  while (true) {
    const std::size_t end = text.find(separator);
    parts.push_back(text.substr(0, end));
    if (end == std::string_view::npos) return parts;
    text.remove_prefix(end + 1);
  }
}

DimNames parse_term(std::string_view text, std::string_view pattern) {
  DimNames term;
  for (const std::string_view word : cut(text, ' ')) {
    if (word.empty() || word == "()") continue;
    TO_CHECK(word == kWholeDim || word == kAnyDims || is_name(word),
             "rule '{}': '{}' is no dim; a dim is the name of a factor (a "
             "letter, then letters and digits), '_' for a dim that stays "
             "whole, or '...' for any number of dims",
             pattern, word);
    const bool twice = word != kWholeDim &&
                       std::find(term.begin(), term.end(), word) != term.end();
    TO_CHECK(!twice,
             "rule '{}': '{}' stands twice in one term; a tensor can be split "
             "along one of its dims by a factor: write '_' for the other",
             pattern, word);
    term.emplace_back(word);
  }
  return term;
}

std::vector<DimNames> parse_terms(std::string_view text,
                                  std::string_view pattern) {
  std::vector<DimNames> terms;
  for (const std::string_view term : cut(text, ',')) {
    terms.push_back(parse_term(term, pattern));
  }
  return terms;
}

std::string to_string(const Rule& rule,
                      const std::vector<TensorRule>& tensors) {
  std::vector<std::string> terms;
  for (const TensorRule& tensor : tensors) {
    std::vector<std::string_view> words;
    for (const int factor : tensor.dims) {
      words.push_back(factor == kNoFactor
                          ? kWholeDim
                          : std::string_view(rule.factors[factor].name));
    }
    terms.push_back(words.empty() ? "()" : str_join(words, " "));
  }
  return str_join(terms, ", ");
}

}  // namespace

std::vector<std::string> Pattern::factors() const {
  std::vector<std::string> names;
  for (const auto* terms : {&operands, &outputs}) {
    for (const DimNames& term : *terms) {
      for (const std::string& word : term) {
        const bool known =
            std::find(names.begin(), names.end(), word) != names.end();
        if (word != kWholeDim && word != kAnyDims && !known) {
          names.push_back(word);
        }
      }
    }
  }
  return names;
}

Pattern parse_pattern(std::string_view text) {
  const std::size_t arrow = text.find(kArrow);
  TO_CHECK(
      arrow != std::string_view::npos &&
          text.find(kArrow, arrow + kArrow.size()) == std::string_view::npos,
      "rule '{}' must have one '->' between operands and outputs, e.g. "
      "'b k, n k -> b n'",
      text);
  return {parse_terms(text.substr(0, arrow), text),
          parse_terms(text.substr(arrow + kArrow.size()), text)};
}

std::string to_string(const Rule& rule) {
  const std::string operands = to_string(rule, rule.operands);
  std::string text =
      str_format("{}{}-> {}", operands, operands.empty() ? "" : " ",
                 to_string(rule, rule.outputs));
  for (const Factor& factor : rule.factors) {
    if (factor.joint.empty()) continue;
    text += str_format("; {}:", factor.name);
    for (const int member : factor.joint) {
      text += str_format(" {}", rule.factors[member].name);
    }
  }
  return text;
}

}  // namespace tensoropt
