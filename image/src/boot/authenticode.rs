//! Signatures of UEFI programs, as Secure Boot checks them (Microsoft's "Windows Authenticode Portable Executable Signature
//! Format"; UEFI specification 2.10, 32.2).
//!
//! Without a time of signing: the same program and key give the same bytes.

use anyhow::{Context, Result, ensure};
use instar_pe::{Layout, put_u32, u32_at};
use instar_pki::der::{bit_string, explicit, implicit, object_id, octet_string, sequence};

use super::{
    signed_data::{self, Signed},
    signer::Signer,
};
use crate::digest::Sha256;

/// The signed content: a digest of a program. 1.3.6.1.4.1.311.2.1.4
const INDIRECT_DATA: &[u8] = &[0x2b, 0x06, 0x01, 0x04, 0x01, 0x82, 0x37, 0x02, 0x01, 0x04];
/// The program is a PE image. 1.3.6.1.4.1.311.2.1.15
const PE_IMAGE_DATA: &[u8] = &[0x2b, 0x06, 0x01, 0x04, 0x01, 0x82, 0x37, 0x02, 0x01, 0x0f];
/// Signatures begin and end at multiples of this.
const ALIGNMENT: usize = 8;
/// The certificate table's entry: revision 2.0, PKCS#7.
const REVISION_AND_KIND: [u8; 4] = [0x00, 0x02, 0x02, 0x00];

/// Returns the program with a signature.
///
/// # Errors
/// It is no program, or is signed already.
pub fn sign(program: &[u8], signer: &Signer) -> Result<Vec<u8>> {
    let layout = Layout::read(program)?;
    let place = layout.certificates();
    ensure!(
        u32_at(program, place) == Some(0),
        "the program is signed already"
    );
    let mut file = program.to_vec();
    file.resize(file.len().next_multiple_of(ALIGNMENT), 0);
    put_u32(&mut file, layout.checksum(), 0);

    let content = indirect_data(image_digest(&file, &layout).bytes());
    let signature = signed_data::sign(
        &Signed::Inside {
            kind: INDIRECT_DATA,
            content: &content,
        },
        signer,
    )?;

    let start = file.len();
    let length = 8 + signature.len();
    file.extend(
        u32::try_from(length)
            .context("the signature is too large")?
            .to_le_bytes(),
    );
    file.extend(REVISION_AND_KIND);
    file.extend(signature);
    file.resize(file.len().next_multiple_of(ALIGNMENT), 0);
    let size = file.len() - start;
    put_u32(
        &mut file,
        place,
        u32::try_from(start).context("the program is too large")?,
    );
    put_u32(
        &mut file,
        place + 4,
        u32::try_from(size).context("the signature is too large")?,
    );
    Ok(file)
}

/// Returns the digest by which firmware knows a program, signed or not: a signature does not change it.
///
/// # Errors
/// It is no program.
pub fn digest_of(program: &[u8]) -> Result<Sha256> {
    let layout = Layout::read(program)?;
    let signatures = u32_at(program, layout.certificates()).unwrap_or(0) as usize;
    let end = match signatures {
        0 => program.len(),
        start => start.min(program.len()),
    };
    let mut unsigned = program[..end].to_vec();
    unsigned.resize(end.next_multiple_of(ALIGNMENT), 0);
    Ok(image_digest(&unsigned, &layout))
}

/// Returns SHA-256 of all but the checksum, the place of the signatures and the signatures. Sections follow each other
/// in the file without gaps, so that the firmware, which computes it section by section, gets the same.
fn image_digest(file: &[u8], layout: &Layout) -> Sha256 {
    Sha256::of_pieces(layout.signed(file.len()).map(|range| &file[range]))
}

/// `SpcIndirectDataContent`: this is a PE image, of a file without a name, with this digest.
fn indirect_data(digest: &[u8]) -> Vec<u8> {
    // SpcLink, choice `file`, an SpcString, choice `unicode`, empty.
    let no_file = explicit(0, &explicit(2, &implicit(0, &[])));
    sequence(&[
        &sequence(&[
            &object_id(PE_IMAGE_DATA),
            &sequence(&[&bit_string(&[]), &no_file]),
        ]),
        &sequence(&[&signed_data::sha256(), &octet_string(digest)]),
    ])
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use instar_pe::smallest;

    use super::*;

    #[test]
    fn a_signature_does_not_change_the_digest_and_any_other_byte_does() {
        let unsigned = smallest();
        let layout = Layout::read(&unsigned).unwrap();
        let digest = digest_of(&unsigned).unwrap();
        let mut signed = unsigned.clone();
        let start = u32::try_from(signed.len()).unwrap();
        put_u32(&mut signed, layout.certificates(), start);
        put_u32(&mut signed, layout.certificates() + 4, 16);
        put_u32(&mut signed, layout.checksum(), 7);
        signed.extend([9; 16]);
        assert_eq!(digest_of(&signed).unwrap(), digest);
        for at in [2, layout.checksum() - 1, unsigned.len() - 1] {
            let mut other = signed.clone();
            other[at] ^= 1;
            assert_ne!(digest_of(&other).unwrap(), digest, "{at}");
        }
    }
}
