//! The policy: the owner's rules in their order, of which the first that matches an image decides about it.

use std::fmt;

use instar_values::{ImagePattern, ImageReference, ImageRule, PublicKey, RuleEffect};

/// The owner's rules. Without rules every image is allowed.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Policy {
    rules: Vec<ImageRule>,
}

/// A rule as messages name it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct RuleName {
    /// Its place among the rules, from 0.
    pub number: usize,
    /// Its pattern.
    pub pattern: ImagePattern,
}

/// The policy's decision about an image by its name alone.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Verdict<'a> {
    /// No rule matches: the image is allowed.
    NoRule,
    /// The image is allowed without a signature.
    Skip(RuleName),
    /// The image is refused.
    Deny(RuleName),
    /// The image is allowed with a signature by this key.
    SignedBy(RuleName, &'a PublicKey),
}

impl Policy {
    /// A policy of these rules.
    pub fn new(rules: Vec<ImageRule>) -> Self {
        Policy { rules }
    }

    /// Decides about an image by its name.
    pub fn verdict(&self, image: &ImageReference) -> Verdict<'_> {
        let mut rules = self.rules.iter().enumerate();
        let Some((number, rule)) = rules.find(|(_, rule)| rule.pattern.matches(image)) else {
            return Verdict::NoRule;
        };
        let pattern = rule.pattern.clone();
        let name = RuleName { number, pattern };
        match &rule.effect {
            RuleEffect::Skip => Verdict::Skip(name),
            RuleEffect::Deny => Verdict::Deny(name),
            RuleEffect::SignedBy(key) => Verdict::SignedBy(name, key),
        }
    }
}

impl RuleName {
    /// Its number with four digits, by which resources name it.
    pub fn id(&self) -> String {
        format!("{:04}", self.number)
    }
}

impl fmt::Display for RuleName {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "rule {} ({})", self.id(), self.pattern)
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;
    use crate::verification::test_signing::Signer;

    #[test]
    fn the_first_rule_that_matches_decides() {
        let key = Signer::ecdsa().public_key();
        let rule = |pattern: &str, effect| ImageRule {
            pattern: ImagePattern::new(pattern),
            effect,
        };
        let policy = Policy::new(vec![
            rule("docker.io/library/nginx", RuleEffect::Skip),
            rule("docker.io/*", RuleEffect::Deny),
            rule("*/app", RuleEffect::SignedBy(key.clone())),
            rule("registry.local*", RuleEffect::Deny),
            rule("registry.local/*", RuleEffect::Skip),
        ]);
        let name = |number, pattern: &str| RuleName {
            number,
            pattern: ImagePattern::new(pattern),
        };
        for (image, expected) in [
            ("nginx", Verdict::Skip(name(0, "docker.io/library/nginx"))),
            (
                "nginx:1.27",
                Verdict::Skip(name(0, "docker.io/library/nginx")),
            ),
            ("grafana/grafana", Verdict::Deny(name(1, "docker.io/*"))),
            ("r.io/a/app:v1", Verdict::SignedBy(name(2, "*/app"), &key)),
            (
                "registry.local/app",
                Verdict::SignedBy(name(2, "*/app"), &key),
            ),
            (
                "registry.local:5000/b",
                Verdict::Deny(name(3, "registry.local*")),
            ),
            (
                "registry.local/b",
                Verdict::Deny(name(3, "registry.local*")),
            ),
            ("r.io/b", Verdict::NoRule),
        ] {
            assert_eq!(policy.verdict(&image.parse().unwrap()), expected, "{image}");
        }
        assert_eq!(
            Policy::default().verdict(&"a".parse().unwrap()),
            Verdict::NoRule
        );
        assert_eq!(name(12, "r.io/*").to_string(), "rule 0012 (r.io/*)");
    }
}
