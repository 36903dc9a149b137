//! `make code-order`: records which functions of machined an idle machine runs, and which a boot runs, and writes their names into
//! `machined/code-order`. `build/link-in-order` links the functions in this order.
//!
//! A program is read from the root filesystem by pages. In the compiler's order, each page with a function that runs has ten that do not.

mod names;
mod record;

use std::process::ExitCode;

use anyhow::{Context, Result};
use instar_tests::{Scratch, workspace_root};

use crate::names::Symbols;

/// The list, below the workspace.
const LIST: &str = "machined/code-order";

fn main() -> ExitCode {
    match record_order() {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("record-code-order: {error:#}");
            ExitCode::FAILURE
        }
    }
}

fn record_order() -> Result<()> {
    let symbols = Symbols::of(&record::symbols())?;
    let scratch = Scratch::make("code-order")?;
    let runtime = tokio::runtime::Runtime::new().context("start the runtime")?;
    let ran = runtime.block_on(record::run(&scratch))?;
    let list = symbols.in_order(&[ran.idle, ran.boot])?;
    println!("{} functions in {LIST}", list.len());
    let path = workspace_root().join(LIST);
    std::fs::write(&path, list.join("\n") + "\n")
        .with_context(|| format!("cannot write {}", path.display()))
}
