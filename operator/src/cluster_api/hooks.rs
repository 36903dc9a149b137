//! The answer of each hook.

use kube::Client;
use serde::de::DeserializeOwned;
use serde_json::{Value, json};

use super::difference::{Difference, Shape, difference};
use super::driver;
use super::settings::Settings;
use super::wire::{Answer, CanUpdate, Hook, UpdateMachine, merge_patch};
use crate::policy;

/// Answers a call of a hook. `body` is its request.
pub(super) async fn answer(hook: Hook, body: &[u8], management: &Client) -> Value {
    let answer = match hook {
        Hook::Discovery => Answer::handlers(),
        Hook::CanUpdateMachine => can_update(Shape::Machine, body),
        Hook::CanUpdateMachineSet => can_update(Shape::MachineSet, body),
        Hook::UpdateMachine => match read::<UpdateMachine>(body) {
            Ok(request) => driver::update(management, request).await,
            Err(why) => Answer::Failure(why),
        },
    };
    hook.answer(answer)
}

fn read<T: DeserializeOwned>(body: &[u8]) -> Result<T, String> {
    serde_json::from_slice(body).map_err(|error| format!("the request cannot be read: {error}"))
}

/// Whether a machine, or those of a set, can become what they are to be without being replaced.
fn can_update(shape: Shape, body: &[u8]) -> Answer {
    let request: CanUpdate = match read(body) {
        Ok(request) => request,
        Err(why) => return Answer::Failure(why),
    };
    let annotations = shape.annotations(&request.desired.machine);
    let settings = match Settings::of_machine(&request.settings, annotations) {
        Ok(settings) => settings,
        Err(why) => return Answer::Failure(why),
    };
    let why = match difference(shape, &request.current, &request.desired, &settings) {
        Difference::Nothing => return Answer::no(String::new()),
        Difference::OsImage(image) => match is_usable(&settings, &image) {
            Ok(()) => return patch(shape, &settings, image),
            Err(why) => why,
        },
        Difference::TooMuch(fields) => fields.join(", "),
    };
    let name = request.desired.machine["metadata"]["name"].as_str();
    let name = name.unwrap_or_default().to_owned();
    eprintln!("{name}: cannot change in place: {why}");
    match settings.never_replace {
        false => Answer::no(format!("cannot change in place: {why}")),
        // Without a patch it would be replaced; a failure stops it here, and is tried again.
        true => Answer::Failure(format!(
            "{name} cannot change in place, and is never to be replaced: take back {why}; or delete Machines yourself, one by one"
        )),
    }
}

/// Whether a node can be told to run the image.
fn is_usable(settings: &Settings, image: &str) -> Result<(), String> {
    let pool = settings.pool(Default::default(), image.to_owned());
    let wanted = policy::wanted(&pool).map(|_| ());
    wanted.map_err(|why| format!("{}: {image}: {why}", settings.os_image))
}

/// The patch of the image, and of nothing else.
fn patch(shape: Shape, settings: &Settings, image: String) -> Answer {
    let spec = json!({"spec": settings.os_image.set_to(Value::from(image))});
    let (name, object) = match shape {
        Shape::Machine => ("infrastructureMachinePatch", spec),
        Shape::MachineSet => (
            "infrastructureMachineTemplatePatch",
            json!({"spec": {"template": spec}}),
        ),
    };
    Answer::Success(String::new(), json!({ name: merge_patch(&object) }))
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use base64::Engine as _;
    use base64::engine::general_purpose::STANDARD;

    use super::*;

    fn asked(settings: Value, current: Value, desired: Value) -> Value {
        let objects = |spec: Value| {
            json!({
                "machineSet": {"metadata": {"name": "ms"}, "spec": {"template": {"spec": {"version": "v1.36.3"}}}},
                "infrastructureMachineTemplate": {"spec": {"template": {"spec": spec}}},
            })
        };
        let request =
            json!({"settings": settings, "current": objects(current), "desired": objects(desired)});
        let answer = can_update(Shape::MachineSet, request.to_string().as_bytes());
        Hook::CanUpdateMachineSet.answer(answer)
    }

    #[test]
    fn another_image_alone_is_a_patch_of_it() {
        let answer = asked(
            json!({}),
            json!({"osImage": "r/i:v1"}),
            json!({"osImage": "r/i:v2"}),
        );
        assert_eq!(answer["status"], "Success");
        let patch = answer["infrastructureMachineTemplatePatch"]["patch"]
            .as_str()
            .unwrap();
        let patch: Value = serde_json::from_slice(&STANDARD.decode(patch).unwrap()).unwrap();
        assert_eq!(
            patch,
            json!({"spec": {"template": {"spec": {"osImage": "r/i:v2"}}}})
        );
    }

    #[test]
    fn what_cannot_be_carried_out_is_no_patch_or_a_failure() {
        let more = json!({"osImage": "r/i:v2", "cpus": 2});
        let no_tag = json!({"osImage": "r/i"});
        for (settings, desired, status, words) in [
            (
                json!({}),
                &more,
                "Success",
                "infrastructure machine /spec/cpus",
            ),
            (
                json!({"neverReplace": "false"}),
                &more,
                "Success",
                "/spec/cpus",
            ),
            (
                json!({"neverReplace": "true"}),
                &more,
                "Failure",
                "take back infrastructure machine /spec/cpus",
            ),
            (json!({}), &no_tag, "Success", "neither a tag nor a digest"),
            (
                json!({"neverReplace": "true"}),
                &no_tag,
                "Failure",
                "neither a tag nor a digest",
            ),
            (
                json!({"never": "true"}),
                &more,
                "Failure",
                "no such setting",
            ),
        ] {
            let answer = asked(settings, json!({"osImage": "r/i:v1"}), desired.clone());
            assert_eq!(answer["status"], status, "{answer}");
            assert!(
                answer["message"].as_str().unwrap().contains(words),
                "{answer}"
            );
            assert!(
                answer.get("infrastructureMachineTemplatePatch").is_none(),
                "{answer}"
            );
        }
    }

    #[test]
    fn what_is_no_request_is_a_failure() {
        let answer = can_update(Shape::Machine, b"{");
        assert!(matches!(answer, Answer::Failure(_)), "{answer:?}");
    }
}
