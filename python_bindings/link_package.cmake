# Links every file and folder of the package's sources (FROM) into the build folder of the package and the modules (TO).
file(MAKE_DIRECTORY ${TO})
file(GLOB entries RELATIVE ${FROM} ${FROM}/*)
list(REMOVE_ITEM entries __pycache__)
foreach(entry IN LISTS entries)
  file(CREATE_LINK ${FROM}/${entry} ${TO}/${entry} SYMBOLIC)
endforeach()
