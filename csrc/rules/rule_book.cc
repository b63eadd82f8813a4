#include "rules/rule_book.h"

#include "common/check.h"

namespace tensoropt {

void RuleBook::declare(const DeclaredRule& declared) {
  TO_CHECK(!builtin_registry().find(declared.target),
           "operator {} comes with a rule, which cannot be replaced",
           declared.target);
  OpDefinition definition = definition_of(declared);
  const std::lock_guard lock(mutex_);
  declared_.insert_or_assign(declared.target, std::move(definition));
}

void RuleBook::withdraw(const std::string& target) {
  const std::lock_guard lock(mutex_);
  TO_CHECK(declared_.erase(target) == 1,
           "no rule was registered for operator {}", target);
}

std::shared_ptr<const Registry> RuleBook::registry() const {
  auto registry = std::make_shared<Registry>(builtin_registry());
  const std::lock_guard lock(mutex_);
  for (const auto& [target, definition] : declared_) {
    registry->add(target, definition);
  }
  return registry;
}

}  // namespace tensoropt
