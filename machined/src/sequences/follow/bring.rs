//! Takes files of the channel that a person brings, by a call or in a bundle.

use instar_channel::{ChannelFiles, Position, Refused, Replayed};

use crate::machine::Machine;

/// Why files of a channel are not taken.
#[derive(Debug, thiserror::Error)]
pub enum NotTaken {
    /// The config names no channel.
    #[error("this machine follows no channel: its config has no UpgradeFollowConfig")]
    FollowsNone,
    /// The list is not one of the channel.
    #[error(transparent)]
    Refused(#[from] Refused),
    /// The machine has seen a newer list.
    #[error(transparent)]
    Replayed(#[from] Replayed),
}

/// Takes files of the channel that the machine follows; returns the serial of the list.
///
/// # Errors
/// The machine follows no channel, or the list is not by its key, of another channel, or an old one. Then nothing changes.
pub async fn bring(machine: &Machine, files: ChannelFiles) -> Result<u64, NotTaken> {
    let configured = machine.config();
    let follow = configured.as_ref();
    let follow = follow.and_then(|it| it.config.upgrade_follow.as_ref());
    let follow = follow.ok_or(NotTaken::FollowsNone)?;
    let list = instar_channel::open(
        &follow.channel,
        &follow.key,
        files.list(),
        files.signature(),
    )?;
    let record = machine.follow.record();
    let known = record.as_ref().and_then(|it| it.position.as_ref());
    Position::after(known, &list, files.list())?;
    machine.follow.bring(files).await;
    Ok(list.serial)
}
