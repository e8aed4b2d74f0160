/* A shared object with nothing in it: what stands for the driver's libraries that only have to be mounted. */
typedef int a_translation_unit_needs_a_declaration;
