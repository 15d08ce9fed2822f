// The CPU kernels, by the file that fills the slots. Called once by register_columns().
#pragma once

namespace gradual::cpu {

void register_elementwise();
void register_reductions();
void register_movement();
void register_inplace();
void register_random();
void register_contractions();
void register_pooling();
void register_normalization();
void register_losses();
void register_optimizer();

}  // namespace gradual::cpu
