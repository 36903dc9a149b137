//! The answer of each hook.

use kube::Client;
use serde::de::DeserializeOwned;
use serde_json::{Value, json};

use super::difference::{Difference, Shape, SpecPatches, difference};
use super::driver;
use super::settings::Settings;
use super::wanted::Wanted;
use super::wire::{Answer, CanUpdate, Hook, UpdateMachine, merge_patch};

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
        Difference::InPlace(patches) => {
            // Who begins it can end it: UpdateMachine reads the same from the objects.
            match Wanted::of(&settings, shape.specs(&request.desired)) {
                Ok(_) => return promise(shape, patches),
                Err(why) => why,
            }
        }
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

/// The patches, and nothing else.
fn promise(shape: Shape, patches: SpecPatches) -> Answer {
    let SpecPatches {
        machine,
        infrastructure_machine,
        bootstrap_config,
    } = patches;
    let [of_machine, of_infrastructure, of_bootstrap] = match shape {
        Shape::Machine => [
            "machinePatch",
            "infrastructureMachinePatch",
            "bootstrapConfigPatch",
        ],
        Shape::MachineSet => [
            "machineSetPatch",
            "infrastructureMachineTemplatePatch",
            "bootstrapConfigTemplatePatch",
        ],
    };
    let parts = [
        (of_machine, machine),
        (of_infrastructure, infrastructure_machine),
        (of_bootstrap, bootstrap_config),
    ];
    let patches = parts.into_iter().filter_map(|(name, spec)| {
        let spec = json!({ "spec": spec? });
        let object = match shape {
            Shape::Machine => spec,
            Shape::MachineSet => json!({"spec": {"template": spec}}),
        };
        Some((name.to_owned(), merge_patch(&object)))
    });
    Answer::Success(String::new(), Value::Object(patches.collect()))
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
        let expected = json!({"spec": {"template": {"spec": {"osImage": "r/i:v2"}}}});
        assert_eq!(
            patches(&answer),
            [("infrastructureMachineTemplatePatch", expected)]
        );
    }

    /// The names of the answer's patches, and what each says.
    fn patches(answer: &Value) -> Vec<(&str, Value)> {
        let fields = answer.as_object().unwrap().iter();
        let patches = fields.filter_map(|(name, field)| {
            let patch = STANDARD.decode(field["patch"].as_str()?).unwrap();
            Some((name.as_str(), serde_json::from_slice(&patch).unwrap()))
        });
        let mut patches: Vec<_> = patches.collect();
        patches.sort_by_key(|(name, _)| *name);
        patches
    }

    #[test]
    fn kubernetes_and_the_config_are_patches_of_their_own_objects() {
        let settings =
            json!({"kubernetesPatch": "x: {version}", "configPatchesPath": "/spec/patches"});
        let objects = |version: &str, patches: Value| {
            json!({
                "machine": {"spec": {"version": version}},
                "infrastructureMachine": {"spec": {"osImage": "r/i:v1"}},
                "bootstrapConfig": {"spec": {"patches": patches}},
            })
        };
        let asked = |desired: Value| {
            let current = objects("v1.36.3", json!(["{}"]));
            let request = json!({"settings": settings, "current": current, "desired": desired});
            let answer = can_update(Shape::Machine, request.to_string().as_bytes());
            Hook::CanUpdateMachine.answer(answer)
        };
        let both = asked(objects("v1.37.0", json!(["{}", "a: b"])));
        let list = json!({"spec": {"patches": ["{}", "a: b"]}});
        let version = json!({"spec": {"version": "v1.37.0"}});
        assert_eq!(
            patches(&both),
            [("bootstrapConfigPatch", list), ("machinePatch", version)]
        );
        // A patch that the second update would apply twice is no promise.
        let refused = asked(objects("v1.36.3", json!(["{}", "a: [b]"])));
        assert!(patches(&refused).is_empty(), "{refused}");
        let message = refused["message"].as_str().unwrap();
        assert!(message.contains("append to its lists"), "{message}");
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
