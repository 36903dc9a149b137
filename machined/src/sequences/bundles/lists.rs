//! Gives the lists of channels that a bundle brings to the machine that follows one of them.
//!
//! A list is as good as its signature, whoever brings it, and it starts what the same list from a server would: so nobody has to approve it.
//! One that is not used refuses nothing of the bundle.

use instar_bundle::VerifiedBundle;
use instar_channel::ChannelName;

use crate::base::error_chain::chain;
use crate::bundles::{FoundList, UseOfList};
use crate::machine::Machine;
use crate::sequences::follow::bring;

/// Takes the list of the channel that the machine follows; returns what is done with each list.
pub(super) async fn take_lists(machine: &Machine, bundle: &VerifiedBundle) -> Vec<FoundList> {
    let mut found = Vec::new();
    for channel in bundle.channels() {
        found.push(FoundList {
            channel: channel.clone(),
            use_of_it: take(machine, bundle, channel).await,
        });
    }
    found
}

async fn take(machine: &Machine, bundle: &VerifiedBundle, channel: &ChannelName) -> UseOfList {
    let configured = machine.config();
    let follow = configured.as_ref();
    let follow = follow.and_then(|it| it.config.upgrade_follow.as_ref());
    if follow.is_none_or(|follow| follow.channel != *channel) {
        return UseOfList::NotFollowed;
    }
    let files = match bundle.channel(channel) {
        Ok(files) => files,
        Err(error) => return UseOfList::Refused(error.to_string()),
    };
    match bring(machine, files).await {
        Ok(serial) => UseOfList::Taken { serial },
        Err(error) => UseOfList::Refused(chain(&error)),
    }
}
