// The rules that users declare, beside those that come with the library.
//
//   RuleBook book;
//   book.declare(declared);
//   std::shared_ptr<const Registry> registry = book.registry();
//
// A registry that was handed out never changes: what is declared later is in
// the next one. So a search space and the programs of its ranks see one table.
// Thread-safe.
#pragma once

#include <map>
#include <memory>
#include <mutex>
#include <string>

#include "rules/declared_rule.h"
#include "rules/registry.h"

namespace tensoropt {

class RuleBook {
 public:
  // Replaces an earlier rule of the same operator. Throws UserError if the
  // operator comes with a rule, or the rule contradicts itself.
  void declare(const DeclaredRule& declared);

  // Throws UserError if no rule was declared.
  void withdraw(const std::string& target);

  // All operators that come with the library and those declared until now.
  std::shared_ptr<const Registry> registry() const;

 private:
  mutable std::mutex mutex_;
  std::map<std::string, OpDefinition> declared_;
};

}  // namespace tensoropt
