//! The service of the base that tells kubelet of a shutdown (`logind`): all other services start after it, and end after it has told kubelet and
//! kubelet has ended its pods.

use std::time::Duration;

use instar_extension::{Command, KillMode, Restart, ServiceKind, ServiceUnit};

use crate::service::Service;

/// The name of the service.
pub(crate) const NAME: &str = "logind";
/// Its program, of the base.
const PROGRAM: &str = "/usr/lib/instar/logind";

/// Adds the service, which lets kubelet take so long, before the others.
pub(crate) fn add(services: &mut Vec<Service>, longest: Duration) {
    let told = service(longest);
    for service in &mut *services {
        service.unit.after.push(told.unit.name.clone());
    }
    services.insert(0, told);
}

fn service(longest: Duration) -> Service {
    Service {
        name: NAME.to_owned(),
        extension: "base".to_owned(),
        unit: ServiceUnit {
            name: format!("{NAME}.service"),
            kind: ServiceKind::Notify,
            start: Some(Command {
                may_fail: false,
                program: PROGRAM.to_owned(),
                arguments: vec![longest.as_secs().to_string()],
            }),
            restart: Restart::Always,
            restart_pause: Duration::from_secs(1),
            kill_mode: KillMode::ControlGroup,
            ..ServiceUnit::default()
        },
        ..Service::default()
    }
}
