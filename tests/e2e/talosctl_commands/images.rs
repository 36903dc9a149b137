//! Images are pulled, listed and removed.

use super::*;

pub(super) async fn images_are_pulled_and_those_in_use_are_kept(
    talosctl: &Talosctl<'_>,
    registry: &Registry,
) -> Outcome {
    let image = registry.image_for_guest("greeter:v1");
    let (name, _) = image.rsplit_once(':').unwrap_or_default();
    let absent = registry.image_for_guest("nothing:v1");
    every_image_is_listed(talosctl, &image).await?;
    an_image_is_pulled_by_each_way(talosctl, &image, &format!("{name}@sha256:")).await?;
    what_may_not_be_done_with_an_image_is_refused(talosctl, &image, &absent).await
}

async fn every_image_is_listed(talosctl: &Talosctl<'_>, image: &str) -> Outcome {
    let listed: &[Row<'_>] = &[
        ("image list", 0, &[image, "sha256:"]),
        ("image list --namespace system", 0, &[image]),
        ("image list --namespace inmem", 0, &[image]),
        ("image legacy-list", 0, &[image, "sha256:"]),
    ];
    rows(talosctl, listed).await
}

/// The newer commands print the image's digest.
async fn an_image_is_pulled_by_each_way(
    talosctl: &Talosctl<'_>,
    image: &str,
    pinned: &str,
) -> Outcome {
    let pull = format!("image pull {image}");
    let pull_for_system = format!("{pull} --namespace system");
    let pull_as_before = format!("image legacy-pull {image}");
    let pulled: &[Row<'_>] = &[
        (&pull, 0, &[pinned]),
        (&pull_for_system, 0, &[pinned]),
        (&pull_as_before, 0, &[image]),
    ];
    rows(talosctl, pulled).await
}

async fn what_may_not_be_done_with_an_image_is_refused(
    talosctl: &Talosctl<'_>,
    image: &str,
    absent: &str,
) -> Outcome {
    let pull_absent = format!("image pull {absent}");
    let remove = format!("image remove {image}");
    let remove_absent = format!("image remove {absent}");
    // The command would run a container with any rights.
    let debug = format!("debug {image}");
    let refused: &[Row<'_>] = &[
        (&pull_absent, 1, &[absent]),
        (&remove, 1, &["is needed by the container greeter"]),
        (&remove_absent, 1, &["there is no image"]),
        (&debug, 1, &["Unimplemented"]),
    ];
    rows(talosctl, refused).await
}
