//! Compiles `proto/hello.proto` without protoc.

use std::error::Error;

fn main() -> Result<(), Box<dyn Error>> {
    println!("cargo:rerun-if-changed=proto");
    tonic_prost_build::configure().compile_fds(protox::compile(["hello.proto"], ["proto"])?)?;
    Ok(())
}
