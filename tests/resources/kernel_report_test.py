"""Small examples for the kernel report: machine code reader, hot path and arithmetic."""

import pathlib
import sys
import unittest

sys.dont_write_bytecode = True
ROOT = pathlib.Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT / "scripts" / "kernel_report"))

import hot_path  # noqa: E402
import kernels  # noqa: E402
import machine_code  # noqa: E402
import measure  # noqa: E402
import tools  # noqa: E402

# A checking loop, then a loop over rows with a slow path, an inner loop, a rare call and a barrier.
SASS = """
		Function : _Z4rowsv
        /*0000*/                   LDC R1, c[0x0][0x28] ;                        /* 0x00000a00 */
                                                                                 /* 0x000fe200 */
        /*0010*/                   LDG.E R0, desc[UR4][R2.64] ;                  /* 0x0 */
        /*0020*/               @P0 BRA 0x10 ;                                    /* 0x0 */
        /*0030*/                   BSSY B0, 0x90 ;                               /* 0x0 */
        /*0040*/              @!P2 BRA P1, 0x80 ;                                /* 0x0 */
        /*0050*/              @!P0 LDG.E R4, desc[UR6][R2.64] ;                  /* 0x0 */
        /*0060*/                   LDG.E R5, desc[UR6][R2.64+0x4] ;              /* 0x0 */
        /*0070*/                   BRA 0x80 ;                                    /* 0x0 */
        /*0080*/                   BSYNC B0 ;                                    /* 0x0 */
        /*0090*/              @!P1 BRA 0xb0 ;                                    /* 0x0 */
        /*00a0*/                   CALL.REL.NOINC 0x190 ;                        /* 0x0 */
        /*00b0*/                   LDG.E.NA.128.CONSTANT R4, desc[UR6][R2.64] ;  /* 0x0 */
        /*00c0*/                   FFMA R4, R4, R5, R6 ;                         /* 0x0 */
        /*00d0*/               @P3 BRA 0xb0 ;                                    /* 0x0 */
        /*00e0*/                   BRA.DIV UR4, 0x190 ;                          /* 0x0 */
        /*00f0*/               @P4 BRA 0x120 ;                                   /* 0x0 */
        /*0100*/                   STG.E desc[UR6][R2.64], RZ ;                  /* 0x0 */
        /*0110*/                   BRA 0x120 ;                                   /* 0x0 */
        /*0120*/                   STG.E.128 desc[UR6][R2.64], R4 ;              /* 0x0 */
        /*0130*/               @P5 BRA 0x30 ;                                    /* 0x0 */
        /*0140*/                   EXIT ;                                        /* 0x0 */
        /*0190*/                   RET.REL.NODEC R8 0x0 ;                        /* 0x0 */
"""

USAGE = """
Resource usage:
 Common:
  GLOBAL:28 CONSTANT[4]:224
 Function _Z4rowsv:
  REG:80 STACK:16 SHARED:64 LOCAL:0 CONSTANT[0]:9520 TEXTURE:0 SURFACE:0 SAMPLER:0
"""

REDUCE = (
    "void tersor::kernels::run_kernel<tersor::kernels::ReduceFrames<tersor::kernels::"
    "QuantizeSumCoder<tersor::kernels::Int8Format, tersor::Bf16, (tersor::kernels::NoiseKind)0>, "
    "48u, 48u> >(tersor::kernels::X)"
)


class MachineCode(unittest.TestCase):
    def setUp(self) -> None:
        self.code = machine_code.parse(SASS)["_Z4rowsv"]
        self.at = {instruction.address: instruction for instruction in self.code}

    def test_reads_opcodes_predicates_and_widths(self) -> None:
        self.assertEqual(len(self.code), 22)
        self.assertEqual(self.at[0x50].predicate, "@!P0")
        self.assertEqual(self.at[0xB0].global_bytes, 16)
        self.assertEqual(self.at[0x60].global_bytes, 4)
        self.assertEqual(self.at[0xC0].global_bytes, 0)
        self.assertTrue(self.at[0x100].pads)
        self.assertFalse(self.at[0x120].pads)

    def test_asynchronous_copies_load(self) -> None:
        text = (
            "\tFunction : f\n"
            " /*0000*/ LDGSTS.E.BYPASS.128 [R5], desc[UR4][R2.64] ;\n"
            " /*0010*/ @!P0 LDGSTS.E [R5+0x10], desc[UR4][R2.64] ;\n"
            " /*0020*/ LDS.128 R8, [R5] ;\n"
            " /*0030*/ STG.E.128 desc[UR4][R6.64], R8 ;\n"
            " /*0040*/ @P1 BRA 0x0 ;\n"
        )
        code = machine_code.parse(text)["f"]
        self.assertEqual([i.global_bytes for i in code], [16, 4, 0, 16, 0])
        self.assertEqual([i.loads for i in code], [True, True, False, False, False])
        loop = hot_path.main_loop(code)
        assert loop is not None
        self.assertEqual((loop.load_bytes, loop.wide_load_bytes, loop.stores), (20, 16, 1))

    def test_flow_graph_lists_possible_successors(self) -> None:
        graph = machine_code.FlowGraph(self.code)
        following = {
            instruction.address: {self.code[j].address for j in graph.successors[i]}
            for i, instruction in enumerate(self.code)
        }
        self.assertEqual(following[0x40], {0x50, 0x80})  # `@!P2 BRA P1` may fall through
        self.assertEqual(following[0x70], {0x80})
        self.assertEqual(following[0x80], {0x90})  # BSYNC: the end named by BSSY
        self.assertEqual(following[0xE0], {0xF0})  # diverged warps are ignored
        self.assertEqual(following[0x140], set())


class HotPath(unittest.TestCase):
    def test_main_loop_excludes_calls_and_padding(self) -> None:
        loop = hot_path.main_loop(machine_code.parse(SASS)["_Z4rowsv"])
        assert loop is not None
        # The loop starts at 0x30 and ends at 0x130, with two narrow loads, the call and padding. The inner
        # loop's three instructions count separately.
        self.assertEqual(loop.instructions, 8)
        self.assertEqual([inner.instructions for inner in loop.inner], [3])
        self.assertEqual(loop.inner[0].load_bytes, 16)
        self.assertEqual(loop.stores, 1)

    def test_code_without_a_loop_has_no_main_loop(self) -> None:
        text = "\tFunction : f\n /*0000*/ EXIT ; /* 0x0 */\n"
        self.assertIsNone(hot_path.main_loop(machine_code.parse(text)["f"]))


class Kernels(unittest.TestCase):
    def test_shortens_names(self) -> None:
        short = "ReduceFrames<QuantizeSumCoder<Int8Format, Bf16, 0>, 48, 48>"
        self.assertEqual(kernels.shorten(REDUCE), short)
        self.assertEqual(kernels.shorten("device_image()"), "device_image")

    def test_computes_bytes_per_value(self) -> None:
        work = kernels.work_of(kernels.shorten(REDUCE))
        assert work is not None
        self.assertEqual(work.title, "int8 reduce of 8 + feedback bf16")
        self.assertAlmostEqual(work.bytes_a_value, 9 * (1 + 4 / 256) + 2 * 2)
        self.assertEqual(work.frame_load_bytes, 16 + 2 * 4)
        hadamard = kernels.work_of("HadamardReduceKernel<float, 48, 48>")
        assert hadamard is not None
        self.assertEqual(hadamard.title, "hadamard:bits=4 reduce of 8 + feedback f32")
        self.assertAlmostEqual(hadamard.bytes_a_value, 9 * (0.5 + 2 / 256) + 2 * 4)
        self.assertIsNone(kernels.work_of("HadamardDecodeKernel<float, 48, 1000>"))
        long_list = "ReduceFrames<QuantizeSumCoder<Int8Format, Bf16, 0>, 500, 48>"
        self.assertIsNone(kernels.work_of(long_list))
        encode = kernels.work_of("EncodeFrame<QuantizeCoder<Int4Format, Bf16, NoResidual, 1>, 48>")
        assert encode is not None
        self.assertEqual((encode.title, encode.values), ("int4 encode bf16 stochastic", 32))
        self.assertIsNone(kernels.work_of("EncodeFrame<CopyCoder<Unknown>, 48>"))
        self.assertIsNone(kernels.work_of("Another<float>"))


class Measures(unittest.TestCase):
    def test_parses_resource_usage(self) -> None:
        self.assertEqual(tools.parse_usages(USAGE), {"_Z4rowsv": tools.Usage(80, 16, 64, 0)})

    def test_stack_use_counts_as_a_spill(self) -> None:
        self.assertTrue(measure.Kernel("k", "", tools.Usage(80, 16, 0, 0), 3).spills)
        self.assertFalse(measure.Kernel("k", "", tools.Usage(80, 0, 64, 0), 3).spills)

    def test_counts_resident_blocks(self) -> None:
        for registers, shared, blocks in ((32, 0, 8), (33, 0, 6), (64, 0, 4), (81, 0, 2)):
            usage = tools.Usage(registers, 0, shared, 0)
            self.assertEqual(measure.resident_blocks(usage, "sm_90"), blocks, registers)
        self.assertEqual(measure.resident_blocks(tools.Usage(32, 0, 48000, 0), "sm_90"), 4)
        self.assertEqual(measure.resident_blocks(tools.Usage(32, 0, 48000, 0), "sm_80"), 3)

    def test_turn_instructions_of_a_multi_turn_unit(self) -> None:
        loop = hot_path.main_loop(machine_code.parse(SASS)["_Z4rowsv"])
        assert loop is not None
        work = kernels.Work("w", 4.0, values=2, turns=4)
        self.assertEqual(measure._turn_instructions(loop, work), 3 + 8 / 4)
        self.assertEqual(measure._turn_instructions(loop, kernels.Work("w", 4.0)), 8)

    def test_slots_of_four_bytes(self) -> None:
        self.assertAlmostEqual(measure.slots_for(4), 27.6, places=1)


if __name__ == "__main__":
    unittest.main()
