//! `dashboard`: nodes live, on a terminal.

use std::io::{IsTerminal, stdin, stdout};
use std::time::Duration;

use instar_dashboard::{Keys, Look, Target};

use crate::cli::Global;
use crate::failure::{Exit, Failure};
use crate::node::Node;
use crate::target;

pub(super) async fn run(global: &Global, interval: Duration) -> Result<(), Failure> {
    if !stdin().is_terminal() || !stdout().is_terminal() {
        return Err(Failure::new(Exit::Usage, "the dashboard needs a terminal").advise(
            "`instarctl get machinestatus`, `service`, `memory` and `logs` say the same to programs",
        ));
    }
    let look = Look::of_environment(|name| std::env::var(name).ok()).ok_or_else(|| {
        Failure::new(
            Exit::Usage,
            "the dashboard needs a terminal whose cursor can be moved",
        )
        .advise("name its type, as with TERM=vt220")
    })?;
    let nodes = target::all(global).await?;
    let targets: Result<Vec<_>, _> = nodes.iter().map(target_of).collect();
    instar_dashboard::run(targets?, interval, look, Keys::Quit)
        .await
        .map_err(|error| Failure::new(Exit::Failed, "the dashboard ended").because(error))
}

fn target_of(node: &Node) -> Result<Target, Failure> {
    let request = node.request(())?;
    Ok(Target {
        name: node.name().to_owned(),
        channel: node.channel(),
        node: request.metadata().get(instar_api::NODE_KEY).cloned(),
    })
}
