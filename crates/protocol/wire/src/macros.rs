//! Macros that declare byte layouts, codes and bit fields.

/// Declares a wire struct. Each field has one line with its offset, name, type and doc text.
///
/// The macro checks the size, the alignment (1) and every offset at compile time. It generates the
/// struct and the checks from the same list, so the checks cover every field.
macro_rules! layout {
    ($(#[$meta:meta])* pub struct $name:ident, $size:literal {
        $($at:literal $field:ident: $ty:ty, $doc:literal;)+
    }) => {
        $(#[$meta])*
        #[derive(
            Clone, Copy, PartialEq, Eq, Debug,
            zerocopy::FromBytes, zerocopy::IntoBytes, zerocopy::Immutable,
            zerocopy::KnownLayout, zerocopy::Unaligned,
        )]
        #[repr(C)]
        pub struct $name {
            $(#[doc = $doc] pub $field: $ty,)+
        }

        const _: () = {
            assert!(core::mem::size_of::<$name>() == $size);
            assert!(core::mem::align_of::<$name>() == 1);
            $(assert!(core::mem::offset_of!($name, $field) == $at);)+
        };

        impl $name {
            /// Length in bytes.
            pub const LEN: usize = $size;

            /// Returns the structure with every byte zero.
            pub fn zeroed() -> Self {
                zerocopy::FromZeros::new_zeroed()
            }

            /// Reads the structure from the start of `bytes`; `None` if there are too few bytes.
            pub fn parse(bytes: &[u8]) -> Option<Self> {
                <Self as zerocopy::FromBytes>::read_from_prefix(bytes).ok().map(|(this, _)| this)
            }

            /// Writes all [`Self::LEN`] bytes to the start of `out` and returns that length.
            ///
            /// # Panics
            /// Panics if `out` is shorter than [`Self::LEN`].
            pub fn emit(&self, out: &mut [u8]) -> usize {
                out[..$size].copy_from_slice(zerocopy::IntoBytes::as_bytes(self));
                $size
            }
        }
    };
}

/// Declares a code as a newtype that keeps unknown values. Known values have the names of the
/// specification.
///
/// Extra attributes precede the struct, for example zerocopy derives for a code in a `layout!`.
macro_rules! open_code {
    ($(#[$meta:meta])* pub struct $name:ident($inner:ty), $what:literal {
        $($konst:ident = $value:literal, $text:literal;)+
    }) => {
        $(#[$meta])*
        #[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
        #[repr(transparent)]
        pub struct $name(pub $inner);

        impl $name {
            $(#[doc = $text] pub const $konst: Self = Self($value);)+

            /// Returns the specification's name; `None` for a value that the specification does not
            /// define.
            pub const fn name(self) -> Option<&'static str> {
                match self.0 {
                    $($value => Some($text),)+
                    _ => None,
                }
            }
        }

        impl core::fmt::Display for $name {
            fn fmt(&self, f: &mut core::fmt::Formatter<'_>) -> core::fmt::Result {
                // Shows the name if the code has a name. Adds the number in the alternate form and
                // for a code without a name.
                match self.name() {
                    Some(name) if f.alternate() => write!(f, "{name} ({:#04x})", self.0),
                    Some(name) => f.write_str(name),
                    None => write!(f, concat!("unknown ", $what, " {:#04x}"), self.0),
                }
            }
        }

        impl core::fmt::Debug for $name {
            fn fmt(&self, f: &mut core::fmt::Formatter<'_>) -> core::fmt::Result {
                write!(f, concat!(stringify!($name), "({:#04x}"), self.0)?;
                match self.name() {
                    Some(name) => write!(f, " {name})"),
                    None => f.write_str(")"),
                }
            }
        }
    };
}

/// Adds accessors for bit fields of a newtype over an unsigned integer.
///
/// `bit 3 name with_name "doc"` declares one flag. `bits 4..7 name: u8 with_name "doc"` declares a
/// field of bits 4 to 7, both included. The `with_` method returns a copy with a new value in the
/// field.
macro_rules! bit_fields {
    ($name:ident($inner:ty) { $($body:tt)+ }) => {
        impl $name {
            bit_fields!(@each $inner; $($body)+);
        }
    };
    (@each $inner:ty; ) => {};
    (@each $inner:ty; bit $at:literal $read:ident $with:ident $doc:literal; $($rest:tt)*) => {
        #[doc = $doc]
        pub const fn $read(self) -> bool {
            (self.0 >> $at) & 1 != 0
        }
        #[doc = concat!("Returns a copy with a new value of this field: ", $doc)]
        pub const fn $with(self, on: bool) -> Self {
            Self((self.0 & !(1 << $at)) | ((on as $inner) << $at))
        }
        bit_fields!(@each $inner; $($rest)*);
    };
    (@each $inner:ty; bits $lo:literal $hi:literal $read:ident: $ty:ty, $with:ident $doc:literal;
     $($rest:tt)*) => {
        #[doc = $doc]
        pub const fn $read(self) -> $ty {
            const MASK: $inner = ((1 << ($hi - $lo)) << 1) - 1;
            ((self.0 >> $lo) & MASK) as $ty
        }
        #[doc = concat!("Returns a copy with a new value of this field: ", $doc)]
        ///
        /// # Panics
        /// Panics if the value does not fit the field.
        pub const fn $with(self, value: $ty) -> Self {
            const MASK: $inner = ((1 << ($hi - $lo)) << 1) - 1;
            let value = value as $inner;
            assert!(value <= MASK, "the value does not fit the bit field");
            Self((self.0 & !(MASK << $lo)) | (value << $lo))
        }
        bit_fields!(@each $inner; $($rest)*);
    };
}
