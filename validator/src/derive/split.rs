//! A model in two files, where parameters are frozen: the bytes that the file
//! of the frozen ones must have, and the index over both
//! (`docs/FORMAT.md`, "Checkpoint").

use std::collections::BTreeMap;

use schemas::digest::Digest;
use schemas::model_index::{FROZEN_MODEL_NAME, ModelIndex, ModelIndexMetadata, TRAINABLE_MODEL_NAME};
use schemas::parameters::{ParameterDeclaration, ParameterManifest, ParameterStatus};

use super::initial::InitialValues;

/// Bytes of a binary32.
const ELEMENT_BYTES: u64 = 4;
/// Elements of a block of initial values.
const BLOCK_ELEMENTS: u64 = 4;
/// Bytes that are hashed at once; a multiple of an element.
const PIECE_BYTES: usize = 1 << 16;

/// Whether a run's model lies in two files: where a parameter is frozen.
#[must_use]
pub fn is_split(manifest: &ParameterManifest) -> bool {
    manifest.parameters.iter().any(is_frozen)
}

fn is_frozen(parameter: &ParameterDeclaration) -> bool {
    parameter.status == ParameterStatus::Frozen
}

/// File of a parameter of a model in two files; none of one that is stored
/// under another's name.
#[must_use]
pub fn file_of(parameter: &ParameterDeclaration) -> Option<&'static str> {
    let file = if is_frozen(parameter) { FROZEN_MODEL_NAME } else { TRAINABLE_MODEL_NAME };
    parameter.tied_to.is_none().then_some(file)
}

fn num_elements(parameter: &ParameterDeclaration) -> Option<u64> {
    parameter.shape.iter().try_fold(1u64, |product, extent| product.checked_mul(*extent))
}

/// The file of the frozen parameters, as seed and paths determine it.
#[derive(Debug)]
pub struct FrozenFile<'a> {
    header: Vec<u8>,
    /// Size of the file in bytes.
    pub num_bytes: u64,
    parameters: Vec<(&'a ParameterDeclaration, u64)>,
}

impl<'a> FrozenFile<'a> {
    /// `None` where sizes exceed 64 bits, or a name is no text.
    #[must_use]
    pub fn new(manifest: &'a ParameterManifest) -> Option<Self> {
        let frozen = manifest.parameters.iter().filter(|p| is_frozen(p) && p.tied_to.is_none());
        let mut parameters = frozen.map(|p| Some((p, num_elements(p)?))).collect::<Option<Vec<_>>>()?;
        parameters.sort_by(|a, b| a.0.path.cmp(&b.0.path));
        let mut members = vec![("__metadata__", r#"{"format":"pt"}"#.to_owned())];
        let mut end = 0u64;
        for (parameter, elements) in &parameters {
            let start = end;
            end = end.checked_add(elements.checked_mul(ELEMENT_BYTES)?)?;
            let shape = serde_json::to_string(&parameter.shape).ok()?;
            let member = format!(r#"{{"dtype":"F32","shape":{shape},"data_offsets":[{start},{end}]}}"#);
            members.push((&parameter.path, member));
        }
        members.sort();
        let mut text = String::from("{");
        for (at, (name, member)) in members.iter().enumerate() {
            let comma = if at == 0 { "" } else { "," };
            text.push_str(&format!("{comma}{}:{member}", serde_json::to_string(name).ok()?));
        }
        text.push('}');
        while !text.len().is_multiple_of(8) {
            text.push(' ');
        }
        let mut header = (text.len() as u64).to_le_bytes().to_vec();
        header.extend(text.bytes());
        let num_bytes = end.checked_add(header.len() as u64)?;
        Some(Self { header, num_bytes, parameters })
    }

    /// BLAKE3 of the file. It takes time in proportion to [`Self::num_bytes`],
    /// so the caller makes sure first that a file of that size exists.
    #[must_use]
    pub fn digest(&self, seed: u64) -> Digest {
        let mut hasher = blake3::Hasher::new();
        hasher.update(&self.header);
        let mut piece = Vec::with_capacity(PIECE_BYTES);
        for (parameter, elements) in &self.parameters {
            let values = InitialValues::new(&parameter.initializer, &parameter.path, seed);
            let blocks = (0..elements.div_ceil(BLOCK_ELEMENTS)).flat_map(|block| {
                let left = usize::try_from(elements - block * BLOCK_ELEMENTS).unwrap_or(usize::MAX);
                values.block(block).into_iter().take(left)
            });
            for value in blocks {
                piece.extend(value.to_le_bytes());
                if piece.len() == PIECE_BYTES {
                    hasher.update(&piece);
                    piece.clear();
                }
            }
        }
        hasher.update(&piece);
        Digest::blake3(*hasher.finalize().as_bytes())
    }
}

/// The index over both files; `None` where it has no form.
#[must_use]
pub fn index_json(manifest: &ParameterManifest, frozen: Digest, trainable: Digest) -> Option<Vec<u8>> {
    let mut index = ModelIndex {
        metadata: ModelIndexMetadata {
            shards: BTreeMap::from([
                (FROZEN_MODEL_NAME.to_owned(), frozen),
                (TRAINABLE_MODEL_NAME.to_owned(), trainable),
            ]),
            total_size: 0,
        },
        weight_map: BTreeMap::new(),
    };
    for parameter in &manifest.parameters {
        let Some(file) = file_of(parameter) else { continue };
        let size = num_elements(parameter)?.checked_mul(ELEMENT_BYTES)?;
        index.metadata.total_size = index.metadata.total_size.checked_add(size)?;
        index.weight_map.insert(parameter.path.clone(), file.to_owned());
    }
    serde_json::to_vec(&index).ok()
}

#[cfg(test)]
mod tests {
    use schemas::parameters::Initializer;

    use super::*;
    use crate::derive::safetensors;

    fn parameter(path: &str, shape: &[u64], status: ParameterStatus) -> ParameterDeclaration {
        ParameterDeclaration {
            dtype: "F32".to_owned(),
            group: None,
            initializer: Initializer::Normal { std: 0.02 },
            path: path.to_owned(),
            shape: shape.to_vec(),
            status,
            tied_to: None,
        }
    }

    #[test]
    fn the_frozen_file_is_one_that_the_reader_accepts() {
        let (frozen, trained) = (ParameterStatus::Frozen, ParameterStatus::Trainable);
        let parameters = vec![
            parameter("a", &[3, 3], frozen),
            parameter("b", &[2], trained),
            parameter("c", &[5], frozen),
        ];
        let manifest = ParameterManifest { format: String::new(), parameters };
        assert!(is_split(&manifest));
        let file = FrozenFile::new(&manifest).expect("a small file");
        let header = safetensors::parse(&file.header[8..], file.num_bytes).expect("strict");
        assert!(header.is_marked_pt);
        let names: Vec<&str> = header.tensors.iter().map(|tensor| tensor.info.name.as_str()).collect();
        assert_eq!(names, ["a", "c"]);
        // The digest is that of the header and 9 + 5 elements.
        let mut bytes = file.header.clone();
        for (path, elements) in [("a", 9), ("c", 5)] {
            let values = InitialValues::new(&Initializer::Normal { std: 0.02 }, path, 7);
            let values = (0..3).flat_map(|block| values.block(block)).take(elements);
            bytes.extend(values.flat_map(f32::to_le_bytes));
        }
        assert_eq!(bytes.len() as u64, file.num_bytes);
        assert_eq!(file.digest(7), Digest::blake3(*blake3::hash(&bytes).as_bytes()));
        assert_ne!(file.digest(7), file.digest(8));
        let digest = Digest::blake3([1; 32]);
        let index = index_json(&manifest, digest, digest).expect("an index");
        let index: ModelIndex = serde_json::from_slice(&index).expect("JSON");
        assert_eq!((index.metadata.total_size, index.weight_map.len()), (64, 3));
        assert_eq!(index.weight_map["b"], TRAINABLE_MODEL_NAME);
    }

    #[test]
    fn sizes_beyond_64_bits_have_no_file() {
        let parameters = vec![parameter("a", &[u64::MAX, 2], ParameterStatus::Frozen)];
        let manifest = ParameterManifest { format: String::new(), parameters };
        assert!(FrozenFile::new(&manifest).is_none());
        let digest = Digest::blake3([1; 32]);
        assert!(index_json(&manifest, digest, digest).is_none());
    }
}
