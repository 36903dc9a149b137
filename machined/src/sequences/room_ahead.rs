//! The room for images that are fetched ahead of an upgrade: its installer's image may have the room that is kept for upgrades, as it may when
//! the upgrade fetches it itself. Containers' images may not.

use crate::base::blocking_io::{self, ANSWER};
use crate::oci::{ImageStore, Layer, RoomForAll, room_for_all};

/// Whether the room is looked at, or made.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Making {
    /// Nothing changes.
    Looks,
    /// Everything that nothing needs is removed first if there is too little.
    MakesRoom,
}

/// Computes the room for the layers of these images together. `installer`: those of the upgrade's installer; none if it is here or not among
/// the images.
pub(super) async fn room_ahead(
    store: &ImageStore,
    installer: &[Layer],
    others: &[Vec<Layer>],
    making: Making,
) -> anyhow::Result<RoomForAll> {
    let without_installer = room(store, others.to_vec(), making).await?;
    if installer.is_empty() || !without_installer.is_enough() {
        return Ok(without_installer);
    }
    let all = others.iter().cloned().chain([installer.to_vec()]);
    room(&store.for_upgrade(), all.collect(), making).await
}

async fn room(
    store: &ImageStore,
    layers: Vec<Vec<Layer>>,
    making: Making,
) -> anyhow::Result<RoomForAll> {
    match making {
        Making::MakesRoom => Ok(room_for_all(&layers, store).await?),
        Making::Looks => {
            let store = store.clone();
            let looking = blocking_io::within(ANSWER, move || store.room_for_all(&layers));
            Ok(looking.await??)
        }
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;
    use crate::oci::Keeps;
    use crate::values::Digest;

    #[tokio::test]
    async fn only_the_installers_image_has_the_room_that_is_kept_for_upgrades() {
        let directory = tempfile::tempdir().unwrap();
        let store = ImageStore::new(directory.path().to_owned(), Keeps::Blobs);
        let of_size = |size: u64| {
            vec![Layer {
                digest: Digest::of(b"packed"),
                size,
                diff_id: Digest::of(b"unpacked"),
            }]
        };
        let numbers = |store: ImageStore| store.room_for_all(&[]).unwrap().numbers;
        let (plain, upgrade) = (numbers(store.clone()), numbers(store.for_upgrade()));
        let room = |it: crate::oci::NoRoom| {
            let of_limit = it.limit.saturating_sub(it.used);
            it.free.saturating_sub(it.reserve).min(of_limit)
        };
        // A blob and what it unpacks to: more than containers may have, less than there is.
        let image = of_size((room(plain) + room(upgrade)) / 4);
        let is_enough = async |installer: &[Layer], others: &[Vec<Layer>]| {
            let room = room_ahead(&store, installer, others, Making::Looks).await;
            room.unwrap().is_enough()
        };
        assert!(is_enough(&image, &[]).await);
        assert!(is_enough(&image, &[of_size(0)]).await);
        assert!(!is_enough(&[], std::slice::from_ref(&image)).await);
        assert!(!is_enough(&of_size(1), std::slice::from_ref(&image)).await);
    }
}
