//! The config's kernel modules and parameters.

use crate::base::error_chain::chain;
use crate::init_link::{InitLink, Scope};
use crate::kernel_settings::{KernelSettingError, KernelSpec, Undo, UndoKeeper};
use crate::machine::Machine;

/// Makes the kernel match the spec. Before that, init gets the record by which the changes can be undone.
///
/// # Errors
/// All failures in one text; the rest is done.
pub(in crate::sequences) async fn apply(
    machine: &Machine,
    spec: &KernelSpec,
) -> anyhow::Result<()> {
    let drivers = machine.drivers()?;
    let settings = &machine.kernel_settings;
    all_done(settings.apply(&drivers, spec, &machine.init).await)
}

fn all_done(failures: Vec<KernelSettingError>) -> anyhow::Result<()> {
    let failures: Vec<String> = failures.iter().map(|failure| chain(failure)).collect();
    anyhow::ensure!(failures.is_empty(), "{}", failures.join("; "));
    Ok(())
}

impl UndoKeeper for InitLink {
    async fn keep(&self, undo: Undo) {
        let kept = match undo.to_memfd() {
            Ok(memfd) => InitLink::keep(self, Undo::NAME, Scope::Machine, &memfd).await,
            failed => failed.map(drop),
        };
        if let Err(error) = kept {
            tracing::warn!("should machined die, kernel settings stay as they are: {error:#}");
        }
    }
}
