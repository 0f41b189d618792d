//! Opens the namespaces that specs describe.

mod shared;

use std::sync::Arc;

use farblock_block::{BlockError, Namespace};

use crate::concat::Concat;
use crate::delay::Delay;
use crate::error::OpenError;
use crate::fault::{Fault, Rule, When};
use crate::file::{FileDisk, FileOptions};
use crate::limit::Limit;
use crate::mem::Mem;
use crate::null::Null;
use crate::range::Range;
use crate::spec::{Rate, Spec, SpecError};
use crate::stripe::Stripe;

/// A function that opens an image of a Ceph cluster or a remote disk.
pub type OpenElsewhere<'a> = dyn Fn(&Spec) -> Result<Arc<dyn Namespace>, OpenError> + 'a;

impl Spec {
    /// Opens the namespace. For `mem:`, each call opens a new RAM disk.
    pub fn open(&self, block_size: u32, read_only: bool) -> Result<Arc<dyn Namespace>, OpenError> {
        self.open_with(block_size, read_only, &|spec| {
            Err(OpenError::Rbd(format!("{spec}: this program does not support such disks")))
        })
    }

    /// Like [`Spec::open`], but opens Ceph images and remote disks with `elsewhere`. Remote disks
    /// are always writable.
    pub fn open_with(
        &self,
        block_size: u32,
        read_only: bool,
        elsewhere: &OpenElsewhere<'_>,
    ) -> Result<Arc<dyn Namespace>, OpenError> {
        let open = |spec: &Spec| spec.open_with(block_size, read_only, elsewhere);
        Ok(match self {
            Spec::Rbd(_) => elsewhere(self)?,
            Spec::Remote(_) if read_only => Arc::new(Range::read_only(elsewhere(self)?)),
            Spec::Remote(_) => elsewhere(self)?,
            Spec::File(path) => {
                let options = FileOptions { read_only, ..FileOptions::new(block_size) };
                Arc::new(FileDisk::open(path, &options)?)
            }
            Spec::Mem { bytes } => {
                let mem = Mem::new(block_size, *bytes)?;
                Arc::new(if read_only { mem.read_only() } else { mem })
            }
            Spec::Null { bytes } => {
                let null = Null::new(block_size, *bytes)?;
                Arc::new(if read_only { null.read_only() } else { null })
            }
            Spec::Stripe { chunk_bytes, children } => {
                let children = children.iter().map(open);
                Arc::new(Stripe::new(children.collect::<Result<_, _>>()?, *chunk_bytes)?)
            }
            Spec::Concat { children } => {
                let parts = children.iter().map(|child| match child {
                    Spec::Front { bytes, inner } => Ok((open(inner)?, Some(*bytes))),
                    child => Ok((open(child)?, None)),
                });
                let parts: Vec<_> = parts.collect::<Result<_, OpenError>>()?;
                Self::check_fronts(children, &parts)?;
                Arc::new(Concat::of(parts)?)
            }
            Spec::Front { bytes, inner } => Arc::new(Range::new(open(inner)?, 0, *bytes)?),
            Spec::Range { offset_bytes, bytes, inner } => {
                let whole = shared::open(inner, block_size, read_only, &open)?;
                Arc::new(Range::new(whole, *offset_bytes, *bytes)?)
            }
            Spec::Mirror { .. } => {
                return Err(OpenError::Spec(SpecError(format!(
                    "{self}: only `farblock serve` can share a mirror, and no other disk can \
                     contain one"
                ))));
            }
            Spec::Delay { fixed, jitter, inner } => {
                let inner = open(inner)?;
                Arc::new(Delay::new(inner, *fixed).jitter(*jitter, 0))
            }
            Spec::Limit { rate, inner } => {
                let limit = Limit::new(open(inner)?);
                Arc::new(match *rate {
                    Rate::Ops(rate) => limit.ops_per_second(rate),
                    Rate::Bytes(rate) => limit.bytes_per_second(rate),
                })
            }
            Spec::Fault { every, inner } => {
                let inner = open(inner)?;
                Arc::new(Fault::new(inner, faults(*every), 0))
            }
        })
    }

    /// Checks that a disk of a concatenation has an explicit size if its size can change between
    /// opens. Otherwise the next disk could start at another block after each open.
    fn check_fronts(
        children: &[Spec],
        parts: &[(Arc<dyn Namespace>, Option<u64>)],
    ) -> Result<(), OpenError> {
        let can_change = |spec: &Spec| !matches!(spec, Spec::Mem { .. } | Spec::Null { .. });
        let mut others = children.iter().zip(parts).take(children.len() - 1);
        let unknown = others.find(|(child, (_, bytes))| bytes.is_none() && can_change(child));
        let Some((unknown, _)) = unknown else { return Ok(()) };
        let last = children.len() - 1;
        let all = children.iter().zip(parts).enumerate();
        let with_sizes = all.map(|(at, (child, (namespace, bytes)))| {
            if at == last || bytes.is_some() || !can_change(child) {
                return child.clone();
            }
            let bytes = namespace.geometry().capacity_bytes();
            Spec::Front { bytes, inner: Box::new(child.clone()) }
        });
        let children = with_sizes.collect();
        Err(OpenError::Set(format!(
            "the concatenation does not fix the size of {unknown}, and a change of this size would \
             move all data behind it: write the sizes, as in {} if no size has \
             changed since you created the concatenation",
            Spec::Concat { children }
        )))
    }
}

/// The rules that make every n-th read and every n-th write fail.
fn faults(every: u64) -> Vec<Rule> {
    use farblock_block::Command::{Read, Write};
    vec![
        Rule::new(BlockError::ReadFailed).command(Read).when(When::Every(every)),
        Rule::new(BlockError::WriteFailed).command(Write).when(When::Every(every)),
    ]
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn opening_an_impossible_specification_names_the_reason() {
        let open = |text: &str| Spec::parse(text).unwrap().open(512, false);
        let message = |text| open(text).err().expect("the file was opened").to_string();
        assert!(open("stripe:64KiB,mem:1MiB,mem:2MiB").is_ok());
        assert!(message("mirror:mem:1MiB,mem:1MiB").contains("no other disk can contain one"));
        assert!(message("mem:1000").contains("multiple of 512"));
        assert!(message("stripe:100,mem:1MiB").contains("do not suit"));
        assert!(message("stripe:64KiB,mem:32KiB").contains("does not suit chunks"));
        assert!(message("no/such/disk.img").contains("no/such/disk.img does not exist"));
        assert!(message("range:1MiB+1MiB,mem:1MiB").contains("ends beyond memory"));
        assert!(message("range:0+100,mem:1MiB").contains("choose multiples"));
        assert!(message("concat:nvme+tcp://a/n").contains("does not support such disks"));
        let concat = open("concat:512KiB@mem:1MiB,mem:1MiB").unwrap();
        assert_eq!(concat.geometry().capacity_bytes(), 3 << 19);
        assert!(
            message("concat:2MiB@mem:1MiB,mem:1MiB")
                .contains("shorter than its part of the concatenation, 2 MiB")
        );
        assert!(message("concat:100@mem:1MiB,mem:1MiB").contains("choose a multiple"));
        let stripe = open("stripe:64KiB,mem:1MiB,mem:2MiB").unwrap();
        assert_eq!(stripe.geometry().capacity_bytes(), 2 << 20);
        assert_eq!(
            stripe.describe(),
            "stripe of 2 (2 MiB, 512-byte blocks, chunks of 64 KiB): memory (1 MiB, 512-byte \
             blocks), memory (2 MiB, 512-byte blocks)"
        );
    }
}
