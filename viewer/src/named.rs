//! Enums whose variants have names, for commands, links and scripts.

/// Defines an enum: for each variant its name, in the order of menus.
macro_rules! named {
    ($(#[$doc:meta])* pub enum $named:ident { $($(#[$variant_doc:meta])* $variant:ident = $name:literal,)+ }) => {
        $(#[$doc])*
        pub enum $named { $($(#[$variant_doc])* $variant),+ }

        impl $named {
            /// All variants, in the order of menus.
            pub const ALL: [Self; [$($name),+].len()] = [$(Self::$variant),+];

            /// Returns the name in commands, links and menus, and for scripts.
            #[must_use]
            pub const fn name(self) -> &'static str {
                match self {
                    $(Self::$variant => $name),+
                }
            }

            /// Returns the variant with this [`name`](Self::name), or `None`.
            pub fn from_name(name: &str) -> Option<Self> {
                Self::ALL.into_iter().find(|variant| variant.name() == name)
            }
        }
    };
}
pub(crate) use named;
