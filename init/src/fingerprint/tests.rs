use super::{Facts, differences};

fn facts(mounts: &[&str], links: &[&str]) -> Facts {
    let owned = |items: &[&str]| items.iter().map(|item| (*item).to_owned()).collect();
    [
        ("the mount", owned(mounts)),
        ("the swap", vec![]),
        ("the block device", vec![]),
        ("the network link", owned(links)),
        ("the cgroup", vec![]),
    ]
}

#[test]
fn nothing_differs_from_itself_in_any_order() {
    let before = facts(&["a", "b"], &["lo"]);
    assert!(differences(&before, &facts(&["b", "a"], &["lo"])).is_empty());
}

#[test]
fn what_is_left_and_what_is_gone_is_named() {
    let before = facts(&["a", "b"], &["lo"]);
    let now = facts(&["a"], &["lo", "dummy0"]);
    assert_eq!(
        differences(&before, &now),
        ["the mount b is gone", "the network link dummy0 is left"]
    );
}

#[test]
fn a_second_one_of_the_same_is_left() {
    // A second mount of the same thing at the same place would hide from a comparison of sets.
    let before = facts(&["tmpfs /run"], &[]);
    let now = facts(&["tmpfs /run", "tmpfs /run"], &[]);
    assert_eq!(differences(&before, &now), ["the mount tmpfs /run is left"]);
}
