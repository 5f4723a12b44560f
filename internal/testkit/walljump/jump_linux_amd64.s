//go:build walljump

#include "textflag.h"

// clockGettime(clock DI, *timespec SI) has the C calling convention. It asks the kernel
// and adds the offset to what CLOCK_REALTIME says.
TEXT ·clockGettime(SB),NOSPLIT|NOFRAME,$0
	SUBQ	$24, SP
	MOVQ	DI, 0(SP)
	MOVQ	SI, 8(SP)
	MOVQ	·original(SB), AX
	CALL	AX
	MOVQ	0(SP), DI
	MOVQ	8(SP), SI
	ADDQ	$24, SP
	CMPL	DI, $0
	JNE	done
	MOVQ	·offset(SB), CX
	ADDQ	CX, 0(SI)
done:
	RET

// func addressOfClock() uintptr
TEXT ·addressOfClock(SB),NOSPLIT,$0-8
	LEAQ	·clockGettime(SB), AX
	MOVQ	AX, ret+0(FP)
	RET
