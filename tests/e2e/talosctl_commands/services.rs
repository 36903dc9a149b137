//! Services and values are changed.

use instar_tests::GREETER;

use super::*;

pub(super) async fn services_and_values_change(talosctl: &Talosctl<'_>) -> Outcome {
    rows(talosctl, SERVICES_AND_VALUES).await
}

const SERVICES_AND_VALUES: &[Row<'_>] = &[
    ("service greeter stop", 0, &[GREETER]),
    ("service greeter stop", 0, &[GREETER]),
    ("service greeter start", 0, &[GREETER]),
    ("service greeter restart", 0, &[GREETER]),
    ("service no-such stop", 1, &["no-such"]),
    ("service apid stop", 1, &["apid"]),
    (
        "service machined restart",
        1,
        &["machined", "doesn't support restart operation"],
    ),
    ("restart greeter", 0, &[]),
    ("restart no-such", 1, &["no-such"]),
    ("restart -k no-such", 1, &["no-such"]),
    ("meta write 0x0a value", 0, &["write"]),
    ("get meta", 0, &["0x0a", "value"]),
    ("meta delete 10", 0, &["delete"]),
    ("meta delete 10", 1, &["NotFound"]),
    ("health --wait-timeout 120", 0, &[]),
    (
        "config new - --roles os:reader --crt-ttl 3600",
        0,
        &["context:", "crt:", "key:"],
    ),
    ("config new - --roles os:everything", 1, &["is no role"]),
];
