//! Has cargo link machined again when the order of its functions, or the way to it, has changed.

fn main() {
    for file in [
        "code-order",
        "../build/link-in-order",
        "../build/function-names.sed",
    ] {
        println!("cargo::rerun-if-changed={file}");
    }
}
