use super::differences;

fn facts(facts: &[&str]) -> Vec<String> {
    facts.iter().map(|fact| (*fact).to_owned()).collect()
}

#[test]
fn nothing_differs_from_itself_in_any_order() {
    let before = facts(&["the mount a", "the mount b", "the network link lo"]);
    let now = facts(&["the network link lo", "the mount b", "the mount a"]);
    assert!(differences(&before, now).is_empty());
}

#[test]
fn what_is_left_and_what_is_gone_is_named() {
    let before = facts(&["the mount a", "the mount b"]);
    let now = facts(&["the mount a", "the network link dummy0"]);
    assert_eq!(
        differences(&before, now),
        ["the network link dummy0 is left", "the mount b is gone"]
    );
}

#[test]
fn a_second_one_of_the_same_is_left() {
    // A comparison of sets would miss a second mount of the same kind at the same place.
    let before = facts(&["the mount tmpfs /run"]);
    let now = facts(&["the mount tmpfs /run", "the mount tmpfs /run"]);
    assert_eq!(differences(&before, now), ["the mount tmpfs /run is left"]);
}
