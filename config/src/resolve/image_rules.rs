//! The owner's rules for images and for bundles of images.

use super::{
    super::{
        model::{AskAt, BundleRules, Digest, ImagePattern, ImageRule, RuleEffect, Sticks},
        section::Section,
    },
    Documents,
};

pub(super) fn rules(documents: &Documents<'_>) -> Vec<ImageRule> {
    let document = documents.one("ImageVerificationConfig");
    let rules = document.map(|document| document.sections("rules"));
    let rules = rules.unwrap_or_default().into_iter();
    rules.filter_map(|(_, section)| rule(&section)).collect()
}

pub(super) fn bundles(documents: &Documents<'_>) -> BundleRules {
    let Some(document) = documents.one("BundleConfig") else {
        return BundleRules::default();
    };
    BundleRules {
        approved: document
            .parsed_list::<Digest>("approved")
            .into_iter()
            .collect(),
        sticks: match document.text("sticks") {
            Some("ignore") => Sticks::Ignore,
            _ => Sticks::Accept,
        },
        ask_at: document.parsed_list::<AskAt>("askAt").into_iter().collect(),
        upgrade: document.flag("upgrade").unwrap_or(false),
        support: document.flag("support").unwrap_or(false),
    }
}

fn rule(section: &Section<'_>) -> Option<ImageRule> {
    let pattern = section.text("image").map(ImagePattern::new);
    if pattern.is_none() {
        section.wrong_field(
            "image",
            "this field must not be empty; `*` matches all images",
        );
    }
    let effect = effect(section);
    Some(ImageRule {
        pattern: pattern?,
        effect: effect?,
    })
}

fn effect(section: &Section<'_>) -> Option<RuleEffect> {
    let skip = section.flag("skip").unwrap_or(false);
    let deny = section.flag("deny").unwrap_or(false);
    let (keyless, key) = (section.section("keyless"), section.section("publicKey"));
    if skip && deny {
        section.wrong("`skip` and `deny` exclude each other");
        return None;
    }
    match (keyless, key) {
        (None, None) if skip => Some(RuleEffect::Skip),
        (None, None) if deny => Some(RuleEffect::Deny),
        (None, None) => {
            section.wrong("a rule needs one of `skip: true`, `deny: true` and `publicKey`");
            None
        }
        _ if skip || deny => {
            section.wrong("a rule with `skip` or `deny` checks no signature: `keyless` and `publicKey` must be absent");
            None
        }
        (Some(_), Some(_)) => {
            section.wrong("`keyless` and `publicKey` exclude each other");
            None
        }
        (Some(keyless), None) => {
            refuse_keyless(&keyless);
            None
        }
        (None, Some(key)) => key.required("certificate").map(RuleEffect::SignedBy),
    }
}

/// Refuses a rule that this version cannot enforce. A rule that is not enforced would let in what it is meant to keep out.
fn refuse_keyless(keyless: &Section<'_>) {
    if keyless.text("issuer").is_none() {
        keyless.wrong_field("issuer", "this field must not be empty");
    }
    if keyless.text("subject").is_none() && keyless.text("subjectRegex").is_none() {
        keyless.wrong("one of `subject` and `subjectRegex` must not be empty");
    }
    keyless.wrong(
        "this version does not verify keyless signatures: their certificates last minutes, and only Sigstore's services say whether they \
         were valid; sign with a key, and name it in `publicKey`",
    );
}
