//! Reset: checks a request and converts it for the sequence.

use std::collections::BTreeSet;
use std::sync::Arc;

use instar_api::machine as wire;
use tonic::Status;

use crate::disk::{Label, Wipe};
use crate::machine::Machine;
use crate::sequences::{self, ResetError, ResetRequest};

/// Starts the reset of a request; the reply lacks its metadata.
pub(super) fn reset(
    machine: &Arc<Machine>,
    request: &wire::ResetRequest,
) -> Result<wire::Reset, Status> {
    let wanted = ResetRequest {
        wipe: wipe(request)?,
        graceful: request.graceful,
        reboot: request.reboot,
    };
    let actor = sequences::reset(machine, wanted).map_err(|error| match error {
        ResetError::Busy(_) | ResetError::NoDisk => Status::failed_precondition(error.to_string()),
    })?;
    Ok(wire::Reset {
        metadata: None,
        actor_id: actor.0,
    })
}

fn wipe(request: &wire::ResetRequest) -> Result<Wipe, Status> {
    use wire::reset_request::WipeMode;
    let mode = WipeMode::try_from(request.mode)
        .map_err(|_| Status::invalid_argument(format!("there is no wipe mode {}", request.mode)))?;
    if !request.user_disks_to_wipe.is_empty() || mode == WipeMode::UserDisks {
        return Err(Status::invalid_argument(
            "a machine owns one disk, and no other one is ever written: name no user disks",
        ));
    }
    if request.system_partitions_to_wipe.is_empty() {
        return Ok(Wipe::Disk);
    }
    let wanted = request
        .system_partitions_to_wipe
        .iter()
        .filter(|it| it.wipe);
    let labels: BTreeSet<Label> = wanted
        .map(|it| label(&it.label))
        .collect::<Result<_, _>>()?;
    if labels.is_empty() {
        return Err(Status::invalid_argument(
            "no partition is asked to be wiped: set wipe where a label is given",
        ));
    }
    Ok(Wipe::Partitions(labels))
}

fn label(name: &str) -> Result<Label, Status> {
    name.parse().map_err(|()| {
        Status::invalid_argument(format!(
            "there is no partition {name:?}; the partitions are EFI, STATE and EPHEMERAL"
        ))
    })
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;

    fn partitions(names: &[(&str, bool)]) -> wire::ResetRequest {
        let specs = names.iter().map(|(label, wipe)| wire::ResetPartitionSpec {
            label: (*label).to_owned(),
            wipe: *wipe,
        });
        wire::ResetRequest {
            system_partitions_to_wipe: specs.collect(),
            ..wire::ResetRequest::default()
        }
    }

    #[test]
    fn what_is_wiped_is_what_was_named() {
        assert_eq!(wipe(&wire::ResetRequest::default()).unwrap(), Wipe::Disk);
        assert_eq!(
            wipe(&partitions(&[("STATE", true), ("EPHEMERAL", false)])).unwrap(),
            Wipe::Partitions(BTreeSet::from([Label::State]))
        );
    }

    #[test]
    fn a_request_that_makes_no_sense_wipes_nothing() {
        let users = wire::ResetRequest {
            user_disks_to_wipe: vec!["/dev/vdb".into()],
            ..wire::ResetRequest::default()
        };
        for request in [
            partitions(&[("BOOT", true)]),
            partitions(&[("STATE", false)]),
            users,
        ] {
            let status = wipe(&request).unwrap_err();
            assert_eq!(status.code(), tonic::Code::InvalidArgument, "{status}");
        }
    }
}
