//! `dashboard`: shows nodes live on a terminal.

use std::io::{IsTerminal, stdin, stdout};
use std::time::Duration;

use instar_client::{Failure, FailureKind};
use instar_dashboard::{Keys, Look};

use crate::cli::Global;
use crate::target;

pub(super) async fn run(global: &Global, interval: Duration) -> Result<(), Failure> {
    if !stdin().is_terminal() || !stdout().is_terminal() {
        return Err(Failure::new(FailureKind::Usage, "the dashboard needs a terminal").advise(
            "`instarctl get machinestatus`, `service`, `memory` and `logs` say the same to programs",
        ));
    }
    let look = Look::of_environment(|name| std::env::var(name).ok()).ok_or_else(|| {
        Failure::new(
            FailureKind::Usage,
            "the dashboard needs a terminal whose cursor can be moved",
        )
        .advise("name its type, as with TERM=vt220")
    })?;
    let nodes = target::also_away(global).await?;
    instar_dashboard::run(nodes, interval, look, Keys::Quit)
        .await
        .map_err(|error| Failure::new(FailureKind::Failed, "the dashboard ended").because(error))
}
