//! Has cargo link machined again when the order of its functions has changed (`build/link-in-order`).

fn main() {
    println!("cargo::rerun-if-changed=code-order");
}
